"""The replay alone in Chromium: what stands at which time, at every speed, by scrubbing, by keys, and from nasty tokens."""

import bisect

import pytest
from playwright.sync_api import Page, expect

from bastion.analysis.race import race_table
from bastion.analysis.race_lanes import lanes_of
from bastion.figures import numbers, race_component
from bastion.figures.race_payload import race_payload
from bastion.figures.race_table import race_html
from bastion.step import StepSeconds

from tests.browser import PATIENCE, bare_page
from tests.component_page import page_of
from tests.race_runs import chain_run, tree_run

NASTY = {1: "<img src=x onerror=alert(1)>", 2: "</script><script>alert(2)</script>", 3: "\u202eabc", 4: "\n", 5: "\t", 6: " ", 7: "\x07",
         8: "\U0001f469\u200d\U0001f680", 9: "e\u0301", 10: "", 11: "<0xF0>", 12: "&amp;", 13: "مرحبا", 14: "w"}


def nasty_run():
    run = chain_run("ddtree:8", [[1], [2, 3, 4], [5, 6, 7, 8], [9, 10, 11], [12, 13, 14]], [StepSeconds(verify=0.1)] * 5, repeat=1)
    run.info["vocabulary"].update({str(token): text for token, text in NASTY.items()})
    return type(run)(run.info, run.steps, [[NASTY[token] for token in step.emitted] for step in run.steps])


RUNS = [chain_run("ar", [[k + 1] for k in range(12)], [StepSeconds(verify=0.4), *[StepSeconds(verify=0.2)] * 11], repeat=1),
        tree_run("bastion", seed=4, steps=9, repeat=1), tree_run("dflash", seed=5, steps=7, repeat=1), nasty_run()]
LANES = lanes_of(RUNS)[0]
DATA = race_payload("r", LANES)


def ends(run, prefill=False):
    """When each step of a run is over, in ms, by the record."""
    clock, out = 1e3 * run.steps[0].seconds.total if prefill else 0.0, []
    for step in run.steps:
        clock += 0 if step.kind == "prefill" else 1e3 * step.seconds.total
        out.append(round(clock, 3))
    return out


def steps_at(run, time, prefill=False):
    return bisect.bisect_right(ends(run, prefill), time)


@pytest.fixture
def page(browser):
    with bare_page(browser, 1200, 900) as page:
        page.clock.install()
        yield page


def mount(page: Page, data=DATA, theme="light"):
    page.set_content(page_of(data, theme, race_component))
    page.wait_for_function("window.ready && document.querySelector('#host').shadowRoot.querySelector('.bs').dataset.time !== undefined")
    return page


def time_of(page) -> float:
    return float(page.get_by_test_id("race").get_attribute("data-time"))


def lane(page, method):
    return page.locator(f'[data-testid="race-lane"][data-method="{method}"]')


def scrub(page, time):
    page.get_by_test_id("race-scrub").evaluate("(bar, time) => { bar.value = time; bar.dispatchEvent(new Event('input', { bubbles: true })); }", time)


def stands(page, run) -> list[int]:
    """The step of every token that stands in the run's lane."""
    return [int(n) for n in lane(page, run.info["method"]).get_by_test_id("race-token").evaluate_all("spans => spans.map(s => s.dataset.step)")]


def check(page, time, prefill=False):
    for run in RUNS:
        count = steps_at(run, time, prefill)
        assert stands(page, run) == [step.index for step in run.steps[:count] for _ in step.emitted], (run.info["method"], time)
        tree = lane(page, run.info["method"]).get_by_test_id("race-tree")
        assert tree.get_attribute("data-step") == (str(run.steps[count - 1].index) if count else "")
        nodes = tree.get_by_test_id("race-node").count()
        if count and run.steps[count - 1].kind == "decode":
            assert nodes == run.steps[count - 1].nodes + 1   # and the bonus token
        else:
            assert nodes == 0


def test_it_opens_at_the_end_with_everything_standing_and_who_finished_when(page):
    mount(page)
    longest = max(ends(run)[-1] for run in RUNS)
    assert time_of(page) == pytest.approx(longest)
    check(page, longest)
    order = sorted(RUNS, key=lambda run: ends(run)[-1])
    said = page.get_by_test_id("race-order").inner_text()
    assert [said.find(run.info["method"]) for run in order] == sorted(said.find(run.info["method"]) for run in order)
    assert numbers.seconds(ends(order[0])[-1] / 1e3) in said and "differ in length" in said
    for place, run in zip(("1st", "2nd", "3rd", "4th"), order, strict=True):
        state = lane(page, run.info["method"]).get_by_test_id("race-state").inner_text()
        total = sum(len(step.emitted) for step in run.steps)
        assert state == f"finished after {numbers.seconds(ends(run)[-1] / 1e3)}, {total} tokens, {place}"


@pytest.mark.parametrize("prefill", [False, True])
def test_scrubbing_shows_the_steps_that_are_over_at_that_time_forwards_and_backwards(page, prefill):
    mount(page)
    if prefill:
        page.get_by_test_id("race-prefill").click()
        assert "counts the prefill" in page.get_by_test_id("race-note").inner_text()
    borders = sorted({end for run in RUNS for end in ends(run, prefill)})
    times = [0.0, *(borders[::5]), *(b - 0.001 for b in borders[1::7]), borders[-1], *reversed(borders[2::6]), 0.0]
    for time in times:
        scrub(page, max(time, 0))
        assert time_of(page) == pytest.approx(max(time, 0))
        check(page, max(time, 0), prefill)
    if prefill:
        assert stands(page, RUNS[0]) == []     # at 0 nobody has read the prompt
    else:
        assert stands(page, RUNS[0]) == [0]    # the prefill's token stands from the start


@pytest.mark.parametrize("speed", [0.25, 0.5, 1, 2, 4])
def test_playing_goes_at_the_measured_pace_times_the_speed(page, speed):
    mount(page)
    page.get_by_test_id(f"race-speed-{speed}").click()
    page.get_by_test_id("race-restart").click()
    page.clock.pause_at("2030-01-01")
    page.get_by_test_id("race-play").click()
    last, longest = 0.0, max(ends(run)[-1] for run in RUNS)
    for _ in range(3):
        page.clock.run_for(160)
        now = time_of(page)
        assert now < longest and now - last == pytest.approx(160 * speed, abs=16.7 * speed)   # to the frame
        check(page, now)
        last = now
    expect(page.get_by_test_id("race-play")).to_have_attribute("aria-label", "Pause (space)")
    page.get_by_test_id("race-play").click()
    held = time_of(page)
    page.clock.run_for(500)
    assert time_of(page) == held
    page.get_by_test_id("race-play").click()
    page.clock.run_for(20_000)
    assert time_of(page) == pytest.approx(longest)
    expect(page.get_by_test_id("race-play")).to_have_attribute("aria-label", "Play (space)")
    check(page, longest)


def test_keys_play_pause_and_go_from_one_step_border_to_the_next(page):
    mount(page)
    page.clock.pause_at("2030-01-01")
    page.get_by_test_id("race-scrub").focus()
    page.keyboard.press("Home")
    assert time_of(page) == 0
    borders = sorted({end for run in RUNS for end in ends(run)})
    for border in borders[1:5]:
        page.keyboard.press("ArrowRight")
        assert time_of(page) == pytest.approx(border)
        check(page, border)
    page.keyboard.press("ArrowLeft")
    assert time_of(page) == pytest.approx(borders[3])
    page.keyboard.press(" ")
    page.clock.run_for(100)
    assert time_of(page) > borders[3]
    page.keyboard.press(" ")
    held = time_of(page)
    page.clock.run_for(100)
    assert time_of(page) == held
    page.keyboard.press("End")
    assert time_of(page) == pytest.approx(borders[-1])


def test_tokens_so_far_and_their_rate_are_those_of_the_steps_that_are_over(page):
    mount(page)
    for run in RUNS[:3]:
        at = ends(run)[4]
        scrub(page, at)
        tokens = sum(len(step.emitted) for step in run.steps[1:5])
        here = lane(page, run.info["method"])
        assert here.get_by_test_id("race-rate").inner_text() == numbers.rate(1e3 * tokens / at)
        total = sum(len(step.emitted) for step in run.steps)
        assert here.get_by_test_id("race-state").inner_text() == f"{tokens + 1} of {total} tokens"
        assert float(here.locator(".bar i").evaluate("b => b.style.width").rstrip("%")) == pytest.approx(100 * (tokens + 1) / total, abs=0.01)


def test_nasty_tokens_are_text_and_nothing_else(page):
    mount(page)
    text = lane(page, "ddtree:8").get_by_test_id("race-text")
    assert NASTY[1] in text.inner_text() and NASTY[2] in text.inner_text() and "<U+202E>abc" in text.inner_text() and "&amp;" in text.inner_text()
    assert page.locator("img, #host script").count() == 0
    page.clock.pause_at("2030-01-01")
    page.get_by_test_id("race-play").click()
    page.clock.run_for(30_000)
    assert page.locator("img").count() == 0


LABELS = """() => [...document.querySelector('#host').shadowRoot.querySelectorAll('.tree')].map((tree) => {
  const frame = tree.getBoundingClientRect();
  return [...tree.querySelectorAll('[data-testid=race-label]')].map((label) => {
    const box = label.getBoundingClientRect();
    return { node: Number(label.dataset.node), kind: label.classList[1], text: label.textContent, left: box.left, right: box.right,
             top: box.top, bottom: box.bottom, inside: box.left >= frame.left - 1 && box.right <= frame.right + 1 };
  });
})"""


def deep_run(method, depth, **info):
    """Steps that accept chains of `depth` nodes, then shorter ones: the pitch follows from the deepest."""
    lengths, emitted, token = [depth, 2, max(depth // 2, 1), 1], [[20]], 21
    for length in lengths:
        emitted.append([token + k for k in range(length)])
        token += length
    return chain_run(method, emitted, [StepSeconds(verify=0.1)] * len(emitted), repeat=1, **info)


@pytest.mark.parametrize("width", [1440, 800])
def test_the_accepted_path_and_the_bonus_are_labelled_however_deep_another_lane_is(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    runs = [deep_run("ar", 1), deep_run("dflash", 16), deep_run("ddtree:8", 6), deep_run("bastion", 9)]
    mount(page, race_payload("r", lanes_of(runs)[0]))
    for at in (1, 2, 3, 4):
        scrub(page, max(ends(run)[at] for run in runs))
        for run, labels in zip(runs, page.evaluate(LABELS), strict=True):
            step = run.steps[at]
            path, bonus = set(step.accepted.tolist()), step.nodes
            assert {label["node"] for label in labels} <= path | {bonus} and all(label["inside"] for label in labels)
            assert {label["node"]: label["kind"] for label in labels}.get(bonus) == "bonus", (run.info["method"], at, labels)
            least = len(path) + 1 if run.info["method"] in ("ar", "ddtree:8") else (len(path) + 1) // 2   # pitch of 33 px and more
            assert len(labels) >= least, (run.info["method"], at, labels)
            for i, a in enumerate(labels):
                for b in labels[:i]:
                    assert a["right"] <= b["left"] + 1 or b["right"] <= a["left"] + 1 or abs(a["top"] - b["top"]) >= 11, (a, b)


def test_a_lane_takes_its_width_and_keeps_its_scale_while_it_is_replayed(page):
    runs = [deep_run("dflash", 16), deep_run("ddtree:8", 6)]
    mount(page, race_payload("r", lanes_of(runs)[0]))
    seen = [set(), set()]
    for at in (1, 2, 3):
        scrub(page, ends(runs[0])[at])
        for place, run in enumerate(runs):
            tree = lane(page, run.info["method"]).get_by_test_id("race-tree")
            centres = sorted(tree.locator("circle").evaluate_all("all => all.map((c) => Number(c.getAttribute('cx')))"))
            if len(centres) > 1:
                seen[place].add(round(centres[1] - centres[0], 1))
    wide = lane(page, "dflash").get_by_test_id("race-tree").bounding_box()["width"]
    for pitches, depth in zip(seen, (16, 6), strict=True):
        assert sorted(pitches) == pytest.approx([min((wide - 30) / depth, 72)] * len(pitches), abs=0.2) and pitches


@pytest.mark.parametrize("spacing", [0, 0.4])   # fonts differ from machine to machine: the wider one stands for them
@pytest.mark.parametrize("width", [360, 470, 720, 900, 1200])
def test_in_a_narrow_table_what_matters_most_stays_in_sight(page, width, spacing):
    page.set_viewport_size({"width": width, "height": 700})
    page.set_content(f"<body style='margin: 0; letter-spacing: {spacing}px'>" + race_html(race_table(LANES), greedy=True))
    heads = [cell.inner_text() for cell in page.locator("thead th").all()]
    assert heads[:5] == ["method", "speedup", "tau", "tokens/s", "same text as ar"]
    if width >= 470:
        assert page.locator(".race-table").evaluate("box => box.scrollWidth <= box.clientWidth")
    assert all(page.locator(f"td[data-field={name}]").first.bounding_box()["x"] < width for name in ("speedup", "tau", "tokens_per_second", "same"))
    assert page.locator("td[data-field=build]").first.is_visible() == (width > 880) != page.locator(".left-out").is_visible()


def test_nothing_jumps_while_it_plays(page):
    mount(page)
    places = """() => [...document.querySelector('#host').shadowRoot.querySelectorAll('.lane, .text, .tree, .race-order, [data-part=scrub]')]
      .map((e) => { const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height].map(Math.round).join(); })"""
    roots = """() => [...document.querySelector('#host').shadowRoot.querySelectorAll('.tree')]
      .map((t) => { const c = t.querySelector('.node .anchor'); return c && [c.getAttribute('cx'), c.getAttribute('cy')].join(); })"""
    first, seen = page.evaluate(places), [set() for _ in RUNS]
    for time in (0, 50, 120, 300, 700, 1500, 2200):
        scrub(page, time)
        assert page.evaluate(places) == first
        for place, root in zip(seen, page.evaluate(roots), strict=True):
            place.add(root)
    assert all(len(place - {None}) == 1 for place in seen)     # the root of every tree stays where it is


def test_lanes_stand_side_by_side_and_stack_when_narrow(page):
    mount(page)
    tops = "() => new Set([...document.querySelector('#host').shadowRoot.querySelectorAll('.lane')].map((e) => Math.round(e.getBoundingClientRect().y))).size"
    for width, rows in ((1200, 1), (700, 2), (380, 4)):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"({tops})() === {rows}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_where_motion_is_to_be_reduced_it_paints_twice_a_second(browser):
    page = browser.new_page(reduced_motion="reduce", viewport={"width": 1200, "height": 900})
    page.set_default_timeout(1e3 * PATIENCE)
    page.clock.install()
    mount(page)
    page.get_by_test_id("race-restart").click()
    page.clock.pause_at("2030-01-01")
    page.get_by_test_id("race-play").click()
    seen = set()
    for _ in range(60):
        page.clock.run_for(17)
        seen.add(time_of(page))
    assert 2 <= len(seen) <= 3 and max(seen) > 400
    check(page, max(seen))
    page.close()


def test_another_repeat_starts_anew_and_a_lane_without_it_is_left_out(page):
    second = chain_run("ar", [[5], [6]], [StepSeconds(verify=0.4), StepSeconds(verify=0.1)], repeat=2, id="ar-2")
    lanes = lanes_of([*RUNS, second])[0]
    mount(page, race_payload("r", lanes, 2))
    assert page.get_by_test_id("race-lane").count() == 1 and stands(page, second) == [0, 1]
    page.evaluate("data => feed(data)", race_payload("r", lanes, 1))
    assert page.get_by_test_id("race-lane").count() == 4
    check(page, max(ends(run)[-1] for run in RUNS))


def test_a_run_that_was_stopped_says_so_and_takes_no_place(page):
    cut = tree_run("dflash", seed=5, steps=3, repeat=1, finish_reason="cancelled")
    mount(page, race_payload("r", lanes_of([RUNS[0], cut])[0]))
    assert lane(page, "dflash").get_by_test_id("race-state").inner_text().startswith("stopped after")
    assert page.get_by_test_id("race-order").inner_text().strip() == ""


def test_six_lanes_of_many_steps_draw_a_frame_in_little_time(page):
    """Work, not time: while nothing changes no element is made, and a step that ends draws its lane alone."""
    runs = [tree_run(f"ddtree:{n}", seed=n, steps=128, repeat=1, nodes=n + 1) for n in (8, 16, 24, 32, 48, 64)]
    mount(page, race_payload("r", lanes_of(runs)[0]))
    scrub(page, 1000)
    page.evaluate("""() => { window.changed = new Set();
      const root = document.querySelector('#host').shadowRoot;
      new MutationObserver((list) => list.forEach((m) => m.addedNodes.forEach((n) => {
        const at = m.target.closest && m.target.closest('.lane'); if (at && n.nodeType === 1) changed.add(at.dataset.method); })))
        .observe(root, { childList: true, subtree: true }); }""")
    borders = sorted((end, run.info["method"]) for run in runs for end in ends(run))
    at = bisect.bisect_right(borders, (1000.0, "~"))
    between = (1000.0 + borders[at][0]) / 2
    scrub(page, between)
    assert page.evaluate("[...changed]") == []
    scrub(page, borders[at][0])
    assert page.evaluate("[...changed]") == [borders[at][1]]
