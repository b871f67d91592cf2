"""The tree component alone in Chromium: stepping, pointing, pinning, live updates, downloads."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from bastion.figures import numbers, tree_component
from bastion.figures.tree_payload import run_payload, step_payload
from tests.browser import bare_page
from tests.component_page import page_of
from tests.number_cases import CASES
from tests.synthetic_runs import make_run
from tests.synthetic_runs import text_of as texts_of

RUN = make_run(8, seed=4, nodes=16, beyond=40)
BIG = make_run(3, seed=2, nodes=256, beyond=64, choices=24)


def payload(run, **options):
    return run_payload("r1", [step_payload(s, lambda t: texts_of([t])[0], 7) for s in run], method="bastion",
                       drafter_depth=7, yardstick={"tokens_per_second": 20.0, "measured": False}, **options)


def part_of(whole, start, end, live):
    return {**whole, "steps": whole["steps"][start:end], "start": start, "live": live}


@pytest.fixture
def page(browser):
    with bare_page(browser, 1200, 1300) as page:
        yield page


def mount(page: Page, data, theme="light"):
    page.set_content(page_of(data, theme))
    page.wait_for_function("window.ready && document.querySelector('#host').shadowRoot.querySelector('.bs').dataset.step !== undefined")
    return page


def label(page):
    return page.get_by_test_id("step-label")


def field(page, name):
    return page.get_by_test_id("node-panel").locator(f'[data-field="{name}"]')


def test_keys_buttons_text_and_strip_move_between_steps(page):
    mount(page, payload(RUN, select=3))
    expect(label(page)).to_have_text("Step 3 of 8")
    page.keyboard.press("ArrowRight")
    expect(label(page)).to_have_text("Step 4 of 8")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(label(page)).to_have_text("Step 2 of 8")
    page.get_by_test_id("step-strip").focus()
    page.keyboard.press("End")
    expect(label(page)).to_have_text("Step 8 of 8")
    page.keyboard.press("Home")
    expect(label(page)).to_have_text("Prefill, then 8 steps")
    page.get_by_test_id("step-next").click()
    expect(label(page)).to_have_text("Step 1 of 8")
    page.locator('[data-testid="text-token"][data-step="6"]').first.click()
    expect(label(page)).to_have_text("Step 6 of 8")
    selected = page.locator('[data-testid="text-token"].selected')
    assert selected.count() == len(RUN[6].emitted)
    strip = page.get_by_test_id("step-strip").bounding_box()
    page.mouse.move(strip["x"] + 14 * 2.5, strip["y"] + 20)
    page.mouse.down()
    expect(label(page)).to_have_text("Step 2 of 8")
    page.mouse.move(strip["x"] + 14 * 5.5, strip["y"] + 20)
    expect(label(page)).to_have_text("Step 5 of 8")
    page.mouse.up()
    page.wait_for_function("sent.length > 0 && sent[sent.length - 1][1].step === 5")
    assert page.evaluate("sent")[-1] == ["step", {"run": "r1", "step": 5}]


def test_a_burst_of_moves_is_reported_once(page):
    mount(page, payload(RUN, select=1))
    page.evaluate("""() => { for (let i = 0; i < 5; i += 1)
      document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true, composed: true })); }""")
    expect(label(page)).to_have_text("Step 6 of 8")
    page.wait_for_function("sent.length > 0")
    assert page.evaluate("sent") == [["step", {"run": "r1", "step": 6}]]


def test_play_walks_to_the_end_and_stops(page):
    mount(page, payload(RUN[:4], select=2))
    page.get_by_test_id("step-play").click()
    expect(label(page)).to_have_text("Step 3 of 3")
    expect(page.get_by_test_id("step-play")).to_have_attribute("aria-label", "Play (space)")


def test_the_node_panel_shows_the_record(page):
    step = RUN[5]
    mount(page, payload(RUN, select=5))
    for node in (1, 5, step.nodes - 1):
        page.locator(f'[data-testid="tree-node"][data-node="{node}"] .glyph').hover()
        expect(page.get_by_test_id("node-panel")).to_have_attribute("data-node", str(node))
        path = float(np.exp(step.path_log_probs[node]))
        marginal = path / float(np.exp(step.path_log_probs[step.parents[node]]))
        expect(field(page, "depth")).to_have_text(str(step.depths[node]))
        expect(field(page, "rank")).to_have_text(str(int(step.trace.growth.ranks[node - 1]) + 1))
        expect(field(page, "path")).to_have_text(numbers.probability(path))
        expect(field(page, "marginal")).to_have_text(numbers.probability(marginal))
        expect(field(page, "target")).to_have_text(numbers.probability(float(np.exp(step.trace.target_log_probs[node]))))
        choices = page.get_by_test_id("node-panel").locator("[data-choice] .p")
        assert choices.all_inner_texts() == [numbers.probability(float(np.exp(v))) for v in step.trace.target_top_log_probs[node]]
    past = page.locator('[data-testid="tree-node"][data-origin="not-bought"] .glyph').first
    past.hover()
    expect(field(page, "target")).to_have_text("not verified")


def test_a_click_pins_and_escape_lets_go(page):
    mount(page, payload(RUN, select=5))
    panel = page.get_by_test_id("node-panel")
    page.locator('[data-testid="tree-node"][data-node="4"] .glyph').click()
    page.mouse.move(5, 5)
    expect(panel).to_have_attribute("data-node", "4")
    expect(field(page, "hint")).to_contain_text("Pinned")
    page.locator('[data-testid="tree-node"][data-node="2"] .glyph').hover()
    expect(panel).to_have_attribute("data-node", "2")
    assert page.locator('[data-testid="tree"] .ring').count() == 2, "the pinned node keeps its ring"
    page.mouse.move(5, 5)
    expect(panel).to_have_attribute("data-node", "4")
    page.get_by_test_id("step-strip").focus()
    page.keyboard.press("Escape")
    expect(panel).to_have_attribute("data-node", str(RUN[5].accepted[-1]))


def test_nodes_are_reached_by_keyboard(page):
    mount(page, payload(RUN, select=5))
    page.locator('[data-testid="tree-node"][tabindex="0"]').focus()
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("document.querySelector('#host').shadowRoot.activeElement.dataset.node")
    expect(page.get_by_test_id("node-panel")).to_have_attribute("data-node", focused)
    page.keyboard.press("Enter")
    expect(field(page, "hint")).to_contain_text("Pinned")
    page.keyboard.press("ArrowRight")
    expect(label(page)).to_have_text("Step 6 of 8")


def test_live_steps_are_followed_until_one_steps_back(page):
    whole = payload(RUN)
    mount(page, part_of(whole, 0, 3, True))
    expect(label(page)).to_have_text("Step 2 of 2")
    page.evaluate("feed", part_of(whole, 0, 5, True))
    expect(label(page)).to_have_text("Step 4 of 4")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_test_id("step-follow")).to_have_attribute("aria-pressed", "false")
    page.evaluate("feed", part_of(whole, 2, 7, True))
    expect(label(page)).to_have_text("Step 3 of 6")
    page.get_by_test_id("step-follow").click()
    expect(label(page)).to_have_text("Step 6 of 6")
    page.evaluate("feed", part_of(whole, 0, 9, False))
    expect(label(page)).to_have_text("Step 8 of 8")
    tokens = page.get_by_test_id("text-token")
    assert tokens.count() == sum(len(step.emitted) for step in RUN)


def test_a_gap_is_reported_and_nothing_is_shown_twice(page):
    whole = payload(RUN)
    mount(page, part_of(whole, 4, 6, True))
    page.wait_for_function("sent.length === 1")
    assert page.evaluate("sent") == [["have", {"run": "r1", "have": 0}]]
    page.evaluate("feed", part_of(whole, 0, 6, True))
    page.evaluate("feed", part_of(whole, 3, 8, True))
    expect(label(page)).to_have_text("Step 7 of 7")
    assert page.get_by_test_id("text-token").count() == sum(len(step.emitted) for step in RUN[:8])


def test_an_update_that_brings_nothing_new_draws_nothing(page):
    whole = payload(RUN)
    mount(page, part_of(whole, 0, 5, True))
    in_time = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    drawing = "document.querySelector('#host').shadowRoot.querySelector('[data-part=tree] .node')"
    page.evaluate(f"() => {{ window.drawn = {drawing}; }}")
    page.evaluate("feed", {**part_of(whole, 0, 5, True), "note": "another moment"})
    page.evaluate(in_time)
    assert page.evaluate(f"window.drawn === {drawing}")
    page.evaluate("feed", {**part_of(whole, 0, 5, True), "yardstick": {"tokens_per_second": 25.0, "measured": True}})
    page.evaluate(in_time)
    assert page.evaluate(f"window.drawn !== {drawing}")


def test_long_live_runs_are_acknowledged(page):
    whole = payload(make_run(20, seed=1, nodes=4, beyond=4))
    mount(page, part_of(whole, 0, 2, True))
    page.evaluate("feed", part_of(whole, 0, 15, True))
    assert page.evaluate("sent") == []
    page.evaluate("feed", part_of(whole, 0, 18, True))
    page.wait_for_function("sent.length === 1")
    assert page.evaluate("sent") == [["have", {"run": "r1", "have": 18}]]


def test_nothing_jumps_and_no_label_overlaps(page):
    mount(page, payload(RUN, select=0))
    heights = set()
    for _ in RUN:
        heights.add(page.evaluate("document.querySelector('#host').getBoundingClientRect().height"))
        overlaps = page.evaluate("""() => {
          const labels = [...document.querySelector('#host').shadowRoot.querySelectorAll('[data-testid="tree"] .node .label')];
          const boxes = labels.map((l) => l.getBoundingClientRect());
          const over = [];
          boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
            if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
              over.push([a.x, a.y, b.x, b.y]);
          }));
          return over;
        }""")
        assert overlaps == []
        step = page.evaluate("document.querySelector('#host').shadowRoot.querySelector('.bs').dataset.step")
        page.keyboard.press("ArrowRight")
        if int(step) < 8:
            expect(label(page)).to_have_text(f"Step {int(step) + 1} of 8")
    assert len(heights) == 1


def test_a_large_tree_labels_its_path_alone(page):
    mount(page, payload(BIG, select=2))
    labelled = page.locator('[data-testid="tree"] .node:has(.label)').evaluate_all("nodes => nodes.map((n) => Number(n.dataset.node))")
    step = payload(BIG)["steps"][2]
    assert set(labelled) <= {*step["accepted"], step["bonus"]}
    assert page.get_by_test_id("tree-node").count() == len(step["ids"])


def test_token_text_is_never_markup(page):
    mount(page, payload(RUN, select=1))
    found = page.evaluate("document.querySelector('#host').shadowRoot.querySelectorAll('img, script, iframe').length")
    assert found == 0
    text = page.get_by_test_id("text").inner_text()
    everything = "".join(t for step in RUN for t in texts_of(step.emitted))
    assert ("\u202e" in everything) == ("<U+202E>" in text)
    assert "\u202e" not in text


def test_figures_download_as_files_that_need_no_style_sheet(page):
    mount(page, payload(RUN, select=5), "dark")
    for figure in ("tree", "stopping", "step-parts"):
        button = page.get_by_test_id(f"download-{figure}-svg")
        button.focus()
        with page.expect_download() as download:
            button.press("Enter")
        file = download.value.path()
        assert download.value.suggested_filename == f"bastion-r1-step-5-{figure}.svg"
        text = file.read_text()
        for name in ("var(", "color-mix", "class=", "data-"):
            assert name not in text, name
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert "rgb(0,114,178)" in text or figure == "step-parts"
    with page.expect_download() as download:
        page.get_by_test_id("download-speed-png").press("Enter")
    assert download.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_numbers_read_the_same_as_in_python(page):
    source = tree_component._read("format.js")
    page.set_content("<p></p>")
    page.add_script_tag(content=source + """
      const seconds = (v) => milliseconds(v === null ? v : v * 1000);
      window.f = { significant, count, seconds, ratio, probability, percent, rate };""")
    cases = [[kind, None if value is None or value != value else value] for kind, value, _ in CASES]
    shown = page.evaluate("cases => cases.map(([kind, value]) => f[kind](value))", cases)
    assert shown == [text for *_, text in CASES]


def test_an_unmounted_component_lets_go_of_the_keyboard(page):
    mount(page, payload(RUN, select=3))
    page.evaluate("unmount()")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(100)
    expect(label(page)).to_have_text("Step 3 of 8")


def test_a_component_that_is_started_again_on_the_same_elements_is_one_component(page):
    whole = payload(RUN, select=3)
    mount(page, whole)
    page.evaluate("unmount()")
    page.evaluate("data => feed(data)", whole)
    expect(label(page)).to_have_text("Step 3 of 8")
    for test_id in ("step-play", "node-panel", "step-strip"):
        expect(page.get_by_test_id(test_id)).to_have_count(1)
    expect(page.get_by_test_id("node-panel").locator("dl")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(label(page)).to_have_text("Step 4 of 8")
    page.get_by_test_id("step-previous").click()
    expect(label(page)).to_have_text("Step 3 of 8")


def test_a_component_that_comes_back_goes_on_where_it_was(page):
    whole = payload(RUN)
    mount(page, part_of(whole, 0, 6, True))
    expect(label(page)).to_have_text("Step 5 of 5")
    page.evaluate("unmount()")
    page.evaluate("data => feed(data)", part_of(whole, 6, 9, False))   # the end of the run, after which nothing jumps
    expect(label(page)).to_have_text("Step 8 of 8")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(label(page)).to_have_text("Step 6 of 8")
    page.evaluate("unmount()")
    page.evaluate("data => feed(data)", {**whole, "select": 2})
    expect(label(page)).to_have_text("Step 6 of 8")
    expect(page.get_by_test_id("text-token")).to_have_count(sum(len(s["words"]) for s in whole["steps"]))


def test_the_payload_survives_the_way_streamlit_sends_it():
    data = payload(RUN)
    assert json.loads(json.dumps(data)) == data
