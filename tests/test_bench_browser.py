"""Benchmark end to end: the real default pair, a real server, Chromium; the page's numbers against the results file."""

import json
import re
from urllib.parse import urlencode

import pytest

from bastion.figures import numbers
from bastion.records import RunStore

from tests.browser import Screen

PROMPTS = ['{"id": "count", "prompt": "Count from one to twelve."}', '{"id": "list", "turns": ["Name three fruits.", "Name three more."]}']
METHODS = ["ar", "dflash", "bastion"]
TOTAL = 9   # three turns by three methods


@pytest.fixture(scope="module")
def server(studio):
    (studio.home / "mine.jsonl").write_text("\n".join(PROMPTS) + "\n")
    return studio


def address(server, **more) -> str:
    asked = {"bench-sets": str(server.home / "mine.jsonl"), "bench-methods": METHODS, "bench-tokens": 12, "bench-keep": "true", **more}
    return f"{server.url}/benchmark?{urlencode(asked, doseq=True)}"


def visit(screen, url: str) -> None:
    screen.page.goto(url)
    screen.page.get_by_role("button", name="Start", exact=True).wait_for()


def rows(server) -> list[dict]:
    (file,) = (server.home / "benchmarks").glob("*/results.jsonl")
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]


def status(screen) -> str:
    return screen.page.locator(".st-key-bench-status").inner_text()


def field(screen, method: str, name: str) -> str:
    return screen.page.locator(f'tr[data-method="{method}"] td[data-field="{name}"]').first.inner_text().split("\n")[0]


def test_a_benchmark_asked_for_by_address_runs_stops_resumes_and_shows_what_its_file_holds(screen, server):
    visit(screen, address(server))
    page = screen.page
    screen.until(lambda: f"{TOTAL} decodes of at most 12 tokens" in page.locator("body").inner_text())
    screen.press("Start")
    screen.until(lambda: "bench-id=" in page.url)
    bench_id = screen.query()["bench-id"]
    # Progress per cell while it runs; then Stop leaves what is done, and Resume goes on from there.
    screen.until(lambda: page.get_by_test_id("bench-progress").locator("td").count() == len(METHODS))
    screen.until(lambda: len(rows(server)) >= 2)
    stop = page.get_by_test_id("stMain").get_by_role("button", name="Stop", exact=True)
    ended = page.locator(".st-key-bench-status").filter(has_text=re.compile("Stopped after|Finished"))
    stop.or_(ended).first.wait_for()
    screen.until(lambda: ended.count() == 1 or stop.click(timeout=5000))   # it may be over before the click
    before = rows(server)
    if len(before) < TOTAL:
        screen.press("Resume")
    screen.until(lambda: f"Finished: {TOTAL} of {TOTAL} decodes" in status(screen))
    after = rows(server)
    assert after[:len(before)] == before and len({(r["prompt"], r["turn"], r["method"]) for r in after}) == TOTAL

    def sums(method):
        own = [r for r in after if r["method"] == method]
        tokens, steps = sum(sum(r["lengths"]) for r in own), sum(len(r["lengths"]) for r in own)
        seconds = sum(r["draft"] + r["build"] + r["verify"] + r["commit"] for r in own)
        return tokens / steps, tokens / seconds, sum(sum(r["nodes"]) for r in own) / steps

    page.get_by_test_id("bench-table").wait_for()
    plain = sums("ar")[1]
    outputs = {(r["prompt"], r["turn"], r["method"]): r["ids"] for r in after}
    for method in METHODS:
        tau, speed, nodes = sums(method)
        same = sum(all(outputs[p, t, method] == outputs[p, t, "ar"] for q, t, m in outputs if q == p and m == "ar") for p in ("count", "list"))
        assert field(screen, method, "tau") == numbers.significant(tau)
        assert field(screen, method, "tokens_per_second") == numbers.significant(speed)
        assert field(screen, method, "speedup") == numbers.ratio(speed / plain)
        assert field(screen, method, "nodes") == numbers.significant(nodes)
        assert field(screen, method, "same") == f"{same} of 2"
    # Kept runs are the rows' decodes, and belong to this benchmark.
    runs = RunStore(server.runs())
    kept = {run.id for run in runs.list() if run.group_id == bench_id}
    assert kept == {r["run"] for r in after} and all(runs.open(r["run"]).output_ids == r["ids"] for r in after)
    chart = page.locator(".st-key-chart-bench-speedup .js-plotly-plot")
    chart.wait_for()
    heights = chart.evaluate("e => e.data.map(d => [d.name, d.y[0]])")
    assert {name: pytest.approx(value) for name, value in heights} == {m: sums(m)[1] / plain for m in METHODS[1:]}
    with page.expect_download() as download:
        page.get_by_role("button", name="LaTeX", exact=True).click()
    assert "\\toprule" in open(download.value.path()).read()
    assert [e for e in screen.errors if "404" not in e] == []


def test_a_link_opens_a_finished_benchmark_again_and_brings_its_settings(browser, server):
    (folder,) = (server.home / "benchmarks").glob("*")
    other = Screen(browser, server, width=800)
    try:
        visit(other, f"{server.url}/benchmark?bench-id={folder.name}")
        other.page.get_by_test_id("bench-table").wait_for()
        assert f"Finished: {TOTAL} of {TOTAL} decodes" in status(other)
        assert other.page.get_by_label("New tokens, at most").input_value() == "12"
        assert re.search(r"mine\s+2 prompts", other.page.get_by_test_id("bench-table").inner_text())
        width = other.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 800
        other.page.get_by_role("link", name="Terms").click()
        other.page.get_by_role("heading", name="Terms").wait_for()
        other.page.get_by_role("link", name="Benchmark").click()
        other.page.get_by_test_id("bench-table").wait_for()
        assert other.query()["bench-id"] == folder.name
    finally:
        other.context.close()
