"""The exported file in Chromium, from the disk: it steps, shows what the record says, and asks nobody for anything."""

import re
import time

import pytest
from playwright.sync_api import expect

from bastion.figures import numbers
from bastion.figures.html_export import run_html
from bastion.records import RunStore
from tests.browser import PATIENCE
from tests.synthetic_runs import decode, make_info, make_run, text_of

MARKUP = '"><img src="http://x.invalid/a.png" onerror="alert(1)"><script>alert(2)</script><style>@import "http://x.invalid/b.css"</style>'


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    def texts(ids):
        return [MARKUP if int(i) % 9 == 0 else text for i, text in zip(ids, text_of(ids))]

    store = RunStore(tmp_path_factory.mktemp("runs"))
    writer = store.create(make_info(title=f"Sheep {MARKUP}", prompt=f"How many? {MARKUP}", drafter_depth=7), run_id="shared",
                          text_of=texts, decode=decode)
    for record in make_run(8, seed=4, nodes=16, beyond=40):
        writer.append(record)
    writer.finish("stop")
    return store.open("shared")


class Opened:
    """The file in a tab, with every request, console message and dialog kept."""

    def __init__(self, browser, path, anchor="", **options) -> None:
        self.context = browser.new_context(viewport={"width": 1200, "height": 1000}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(1e3 * PATIENCE)
        self.requests, self.said = [], []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.goto(path.as_uri() + anchor)
        self.page.locator(".bs[data-step]").wait_for()

    def label(self):
        return self.page.get_by_test_id("step-label")

    def close(self) -> None:
        assert self.said == []
        assert [url for url in self.requests if not url.startswith(("file:", "blob:", "data:"))] == []
        assert self.page.locator("img, iframe, object, link").count() == 0
        self.context.close()


@pytest.fixture
def file(run, tmp_path):
    path = tmp_path / "shared.html"
    path.write_text(run_html(run, 3), encoding="utf-8")
    return path


def test_keys_step_and_the_numbers_are_those_of_the_record(browser, file, run):
    opened = Opened(browser, file)
    page = opened.page
    expect(opened.label()).to_have_text("Step 3 of 8")
    for index in (4, 5):
        page.keyboard.press("ArrowRight")
        expect(opened.label()).to_have_text(f"Step {index} of 8")
        step = run.steps[index]
        words = page.locator('[data-testid="text-token"].selected')
        assert words.count() == len(step.emitted)
        assert page.locator('[data-testid="tree-node"]:not([data-origin="not-bought"])').count() >= step.nodes
        accepted = page.locator('[data-testid="tree-node"][data-origin="accepted"]')
        assert [int(n) for n in accepted.evaluate_all("nodes => nodes.map(n => n.dataset.node)")] == list(step.accepted[1:])
        expect(page.get_by_test_id("stopping-title")).to_have_text(f"Why it stopped at {step.nodes} nodes")
        expect(page.get_by_test_id("step-summary")).to_contain_text(f"{numbers.significant(step.surrogate)} expected")
    page.keyboard.press("ArrowLeft")
    expect(opened.label()).to_have_text("Step 4 of 8")
    page.wait_for_url("**/shared.html#step=4")
    page.get_by_test_id("step-strip").focus()
    page.keyboard.press("End")
    expect(opened.label()).to_have_text("Step 8 of 8")
    page.keyboard.press("Home")
    expect(opened.label()).to_have_text("Prefill, then 8 steps")
    tokens = page.get_by_test_id("text-token").all_inner_texts()
    assert len(tokens) == len(run.output_ids)
    shown = "".join(page.locator("dd").all_inner_texts())
    assert numbers.significant(run.info["totals"]["tau"]) in shown
    opened.close()


def test_the_address_opens_a_step_and_moves_to_another(browser, file):
    opened = Opened(browser, file, "#step=6")
    expect(opened.label()).to_have_text("Step 6 of 8")
    opened.page.evaluate("location.hash = '#step=2'")
    expect(opened.label()).to_have_text("Step 2 of 8")
    for nothing in ("#step=99", "#step=x", "#top"):
        opened.page.evaluate("to => { location.hash = to; }", nothing)
        opened.page.wait_for_timeout(50)
        expect(opened.label()).to_have_text("Step 2 of 8")
    opened.close()


def test_markup_in_tokens_title_and_prompt_is_text(browser, file, run):
    opened = Opened(browser, file)
    assert MARKUP in opened.page.locator("h1").inner_text() and MARKUP in opened.page.locator(".prompt").inner_text()
    assert opened.page.title() == f"Sheep {MARKUP}"
    for _ in run.steps:
        opened.page.keyboard.press("ArrowRight")
    expect(opened.label()).to_have_text("Step 8 of 8")
    names = " ".join(opened.page.get_by_test_id("tree-node").evaluate_all("nodes => nodes.map(n => n.ariaLabel)"))
    assert re.search(r"<img|<script", names), "no token with markup was drawn"
    opened.close()


def test_what_slips_in_later_is_not_run_either(browser, file):
    """The policy holds even for a script that some extension or fault puts into the page."""
    opened = Opened(browser, file)
    blocked = []
    opened.context.on("requestfailed", lambda request: blocked.append((request.url, request.failure)))
    opened.page.evaluate("""() => {
      const script = document.createElement("script"); script.textContent = "window.ran = true"; document.body.append(script);
      const image = document.createElement("img"); image.src = "http://x.invalid/c.png"; document.body.append(image); image.remove();
    }""")
    end = time.monotonic() + PATIENCE
    while (len(opened.said) < 2 or not blocked) and time.monotonic() < end:
        opened.page.wait_for_timeout(50)
    assert opened.page.evaluate("window.ran") is None
    assert all("Content Security Policy" in words for words in opened.said) and len(opened.said) == 2
    assert blocked == [("http://x.invalid/c.png", "csp")]
    opened.said.clear()
    opened.requests.remove("http://x.invalid/c.png")
    opened.close()


@pytest.mark.parametrize("scheme, ground", [("light", "rgb(255, 255, 255)"), ("dark", "rgb(17, 19, 23)")])
def test_light_and_dark_follow_the_reader(browser, file, scheme, ground):
    opened = Opened(browser, file, color_scheme=scheme)
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    tip = opened.page.locator(".tip")
    assert tip.evaluate("e => getComputedStyle(e).backgroundColor") == ground
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.page.get_by_test_id("step-next").is_visible()
    opened.close()


def test_figures_still_download(browser, file):
    opened = Opened(browser, file)
    for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
        with opened.page.expect_download() as download:
            opened.page.get_by_test_id(f"download-tree-{kind}").press("Enter")
        assert download.value.path().read_bytes().startswith(start)
    opened.close()


def test_without_scripts_the_text_is_there(browser, file, run):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert "".join(run.text.split())[:40] in "".join(page.locator("noscript").inner_text().split())
    context.close()
