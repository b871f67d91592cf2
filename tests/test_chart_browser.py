"""What stands under a chart, in Chromium: its numbers, its drawing, a link that leads back to it."""

import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pandas as pd
import pytest

from tests.browser import Screen, StudioServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    studio = StudioServer(tmp_path_factory.mktemp("studio"), script="tests/chart_page.py")
    yield studio
    studio.kill()


@pytest.fixture(scope="module")
def screen(browser, server):
    opened = Screen(browser, server)
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.page.goto(f"{server.url}/?choice=mine")
    opened.page.locator(".js-plotly-plot svg.main-svg").first.wait_for()
    yield opened
    opened.context.close()


def downloaded(screen, act) -> tuple[str, bytes]:
    with screen.page.expect_download() as waiting:
        act()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def test_the_numbers_come_at_full_precision(screen):
    name, content = downloaded(screen, lambda: screen.page.get_by_role("button", name="CSV").click())
    assert name == "bastion-cost.csv"
    assert pd.read_csv(io.BytesIO(content), float_precision="round_trip")["ms"].tolist() == [0.1 + 0.2, 2.0, 1 / 3]


def test_the_drawing_comes_as_svg_with_its_words_and_as_png(screen):
    name, content = downloaded(screen, lambda: screen.part("chart-svg-cost").click())
    assert name == "bastion-cost.svg"
    drawing = ElementTree.fromstring(content)
    assert float(drawing.get("width")) > 400 and float(drawing.get("height")) > 200
    words = "".join(drawing.itertext())
    assert "What it cost" in words and "Measured." in words and "step" in words
    assert any("point" in (part.get("class") or "") for part in drawing.iter())
    name, content = downloaded(screen, lambda: screen.part("chart-png-cost").click())
    assert name == "bastion-cost.png" and content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20]) == 2 * float(drawing.get("width"))


def test_the_link_leads_back_to_the_chart_with_all_that_was_chosen(screen):
    screen.part("chart-link-cost").click()
    link = screen.page.evaluate("navigator.clipboard.readText()")
    assert link == f"{screen.server.url}/?choice=mine#cost"
    again = screen.context.new_page()
    again.goto(link)
    again.locator(".js-plotly-plot").wait_for()
    screen.until(lambda: again.locator(".st-key-chart-cost").evaluate(
        "e => { const r = e.getBoundingClientRect(); return r.top < innerHeight && r.bottom > 0; }"))
    assert again.get_by_label("Choice").input_value() == "mine"
    again.close()
    assert screen.errors == []
