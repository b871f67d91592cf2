"""Compare end to end: a real race of the default pair in Chromium, its numbers against the saved records."""

import io
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest

from bastion.figures import numbers
from bastion.records import RunStore
from bastion.records.races import RaceStore

from tests.browser import PATIENCE, Screen

METHODS = ("ar", "dflash", "ddtree:8", "bastion")
TOKENS, REPEATS = 24, 2
LIVE = """() => {
  const status = document.querySelectorAll('.st-key-race-status');
  const chart = document.querySelectorAll('.st-key-chart-race-speedup .js-plotly-plot');
  const words = status.length === 1 ? status[0].innerText : '';
  if (chart.length !== 1 || !chart[0].offsetHeight || !chart[0].querySelector('.ytick')) return [words, null];
  const box = chart[0].getBoundingClientRect();
  return [words, { top: Math.round(box.top + document.querySelector('[data-testid=stMain]').scrollTop), height: Math.round(box.height),
    rows: chart[0].querySelectorAll('.ytick text').length, ticks: [...chart[0].querySelectorAll('.xtick text')].map((t) => t.textContent).join() }];
}"""
PROMPT = "A farmer has 17 sheep and buys 5 more. How many sheep are there now?"


def open_compare(screen, **query):
    """By the way a person takes, from the first page: a deep link asks the server for files that are not there."""
    screen.page.goto(screen.server.url)
    screen.page.get_by_test_id("stSidebarNav").get_by_role("link", name="Compare").click()
    screen.page.get_by_role("combobox", name="Methods").wait_for()


def address(screen) -> dict[str, list[str]]:
    return parse_qs(urlsplit(screen.page.url).query)


def fill(screen, label: str, value: int):
    screen.write(screen.page.get_by_label(label, exact=True), str(value))


def cell(screen, lane: str, field: str) -> list[str]:
    """The figure of a cell, and its range under it."""
    text = screen.page.locator(f'[data-testid=race-table] tr[data-lane="{lane}"] td[data-field="{field}"]').inner_text()
    return [line.strip() for line in text.split("\n") if line.strip()]


def spread(values) -> tuple[float, float, float]:
    return float(np.median(values)), min(values), max(values)


def test_a_race_is_run_replayed_and_its_table_says_what_the_records_say(screen):
    open_compare(screen)
    page = screen.page
    screen.write(screen.prompt(), PROMPT, "Control+Enter")
    page.get_by_test_id("stMain").get_by_label("Clear all").click()
    box = page.get_by_role("combobox", name="Methods")
    for place, method in enumerate(METHODS):
        screen.settle()
        box.fill(method)
        page.get_by_role("option", name=method, exact=True).click()
        screen.until(lambda place=place: address(screen).get("race-methods") == list(METHODS[:place + 1]))
    box.press("Escape")
    fill(screen, "Repeats", REPEATS)
    fill(screen, "New tokens, at most", TOKENS)
    screen.until(lambda: address(screen).get("race-tokens") == [str(TOKENS)] and address(screen).get("race-methods") == list(METHODS))
    screen.press("Start")
    screen.until(lambda: "race-id" in address(screen))
    race_id = address(screen)["race-id"][0]

    # while it runs: which decode, and a chart that keeps its place and its axes
    seen, charts = set(), set()

    def over() -> bool:
        words, place = page.evaluate(LIVE)
        found = re.findall(r"Repeat \d of 2: \S+ \(\d of 8\)", words)
        seen.update(found)
        if found and place:
            charts.add((place["top"], place["height"], place["rows"], place["ticks"]))
        return words.startswith("Done")

    screen.until(over, 3 * PATIENCE)
    assert len(seen) >= 4 and len({(top, height, rows) for top, height, rows, _ in charts}) == 1, (seen, charts)
    assert {rows for _, _, rows, _ in charts} == {len(METHODS)} and len({ticks for *_, ticks in charts}) <= 2   # an axis may grow once

    # what is on the disk
    race = RaceStore(screen.server.home / "races").open(race_id)
    store = RunStore(screen.server.runs())
    runs = {(slot.method, slot.repeat): store.open(slot.run_id) for slot in race.slots()}
    assert race.methods == METHODS and race.prompt == PROMPT and not race.yardstick_added
    assert all(sorted(repeat) == sorted(METHODS) for repeat in race.order) and len(runs) == 8
    assert all(run.complete and len(run.output_ids) <= TOKENS for run in runs.values())
    plain = [runs["ar", repeat].output_ids for repeat in (1, 2)]
    assert all(runs[method, repeat].output_ids == plain[repeat - 1] for method in METHODS for repeat in (1, 2))   # float32, greedy

    # the table, against a computation from the records made here
    def rounds(run):
        return [step for step in run.steps if step.kind == "decode"]

    def speed(run):
        return sum(len(s.emitted) for s in rounds(run)) / sum(s.seconds.draft + s.seconds.build + s.seconds.verify + s.seconds.commit
                                                              for s in rounds(run))

    def mean(run, part):
        return float(np.mean([getattr(s.seconds, part) for s in rounds(run)]))

    for method in METHODS:
        own = [runs[method, repeat] for repeat in (1, 2)]
        figures = {
            "speedup": [speed(run) / speed(runs["ar", repeat]) for run, repeat in zip(own, (1, 2))],
            "tau": [float(np.mean([len(s.emitted) for s in rounds(run)])) for run in own],
            "tokens_per_second": [speed(run) for run in own],
            "nodes": [float(np.mean([s.nodes for s in rounds(run)])) for run in own],
            **{part: [1e3 * mean(run, part) for run in own] for part in ("draft", "build", "verify", "commit")},
            "prefill": [1e3 * run.steps[0].seconds.total for run in own],
        }
        for name, values in figures.items():
            def write(value, name=name):
                return numbers.ratio(value) if name == "speedup" else "<0.01" if 0 < value < 0.01 and name not in ("tau", "nodes") else numbers.significant(value)

            middle, low, high = map(write, spread(values))
            expected = [middle] if low == high else [middle, f"{low}–{high}"]
            assert cell(screen, method, name) == expected, (method, name)
        assert cell(screen, method, "same")[0] == ("the yardstick" if method == "ar" else "yes")
    assert "All texts are the same as plain decoding's" in page.get_by_test_id("stMain").inner_text()

    # the CSV has the same at full precision
    with page.expect_download() as waiting:
        page.locator(".st-key-race-csv").get_by_role("button").click()
    table = pd.read_csv(io.BytesIO(Path(waiting.value.path()).read_bytes()), float_precision="round_trip").set_index("label")
    for method in METHODS:
        ratios = [speed(runs[method, repeat]) / speed(runs["ar", repeat]) for repeat in (1, 2)]
        assert [table.loc[method, f"speedup_{part}"] for part in ("median", "low", "high")] == pytest.approx(spread(ratios), rel=1e-12)

    # the replay: all lanes are of one repeat, the nearest to the medians, and stand where the record says at any time
    def away(repeat: int) -> float:
        ratios = {m: [speed(runs[m, r]) / speed(runs["ar", r]) for r in (1, 2)] for m in METHODS if m != "ar"}
        return sum(abs(np.log(found[repeat - 1] / np.median(found))) for found in ratios.values())

    replayed = min((1, 2), key=away)
    assert page.get_by_text(f"repeat {replayed}, nearest the medians").is_visible()
    screen.part("race-lane").first.wait_for()

    def go_to(time: float) -> None:
        screen.part("race-scrub").evaluate("(bar, time) => { bar.value = time; bar.dispatchEvent(new Event('input', { bubbles: true })); }", time)

    for method in METHODS:
        run = runs[method, replayed]
        lane = page.locator(f'[data-testid=race-lane][data-method="{method}"]')
        total = sum(s.seconds.total for s in rounds(run))
        go_to(1e9)   # the end
        assert numbers.seconds(round(1e3 * total, 3) / 1e3) in lane.get_by_test_id("race-state").inner_text()
        half = 500 * total
        go_to(half)
        clock, over_by_then = 0.0, 1
        for step in rounds(run):
            clock += 1e3 * step.seconds.total
            over_by_then += clock <= half
        tokens = sum(len(s.emitted) for s in run.steps[:over_by_then])
        assert lane.get_by_test_id("race-token").count() == tokens
    screen.part("race-restart").click()
    screen.part("race-play").click()
    screen.until(lambda: float(screen.part("race").get_attribute("data-time")) > 100)
    assert not screen.errors

    # a run of the race opens in Explore, with plain decoding of its repeat as the yardstick
    page.get_by_text("Every run of this race in Explore").click()
    page.locator(".st-key-race-runs-3").get_by_role("link").first.click()
    screen.until(lambda: screen.part("step-label").inner_text().startswith("Step"))
    chosen = runs["bastion", 1]
    assert address(screen)["run"] == [chosen.id]
    ratio = speed(chosen) / speed(runs["ar", 1])
    screen.part("step-strip").focus()
    page.keyboard.press("End")
    screen.until(lambda: float(re.search(r"([\d.]+)x plain decoding", screen.part("speed-title").inner_text())[1]) == pytest.approx(ratio, rel=0.01))

    # and back: the race and its form are still there, and the link opens them in another browser
    page.get_by_test_id("stSidebarNav").get_by_role("link", name="Compare").click()
    screen.until(lambda: address(screen).get("race-id") == [race_id] and screen.part("race-lane").count() == 4)
    screen.until(lambda: page.get_by_role("textbox", name="Prompt").input_value() == PROMPT)   # the form comes after the race
    assert not screen.errors
    other = Screen(screen.context.browser, screen.server)
    other.page.goto(page.url)
    other.until(lambda: other.part("race-lane").count() == 4 and other.page.get_by_role("textbox", name="Prompt").input_value() == PROMPT)
    other.context.close()

    # the runs of it, picked by hand
    picked = [runs["ar", 1].id, runs["bastion", 1].id]
    page.goto(f"{screen.server.url}/compare?race-runs={picked[0]}&race-runs={picked[1]}")
    screen.until(lambda: screen.part("race-lane").count() == 2)
    assert cell(screen, "bastion", "speedup") == [numbers.ratio(ratio)]
    assert page.get_by_test_id("stAlert").count() == 0


def test_stop_ends_a_race_within_a_step_and_shows_what_it_has(screen):
    open_compare(screen)
    screen.write(screen.prompt(), "Tell a long story about a mountain village.", "Control+Enter")
    fill(screen, "New tokens, at most", 200)
    screen.press("Start")
    status = screen.page.locator(".st-key-race-status")
    screen.until(lambda: "tokens" in status.inner_text())
    screen.press("Stop")
    screen.until(lambda: status.inner_text().startswith("Stopped. "))
    assert "of 12 decodes are done." in status.inner_text()
    assert screen.page.get_by_role("button", name="Decode the rest").is_visible() and not screen.errors
