"""The Doctor page in Chromium: a few tests of the real default pair, and the page's numbers against the report's table."""

import csv
import re
from pathlib import Path

from bastion.figures import numbers

TESTED = ("mask", "vocabulary")


def test_some_tests_of_the_default_pair_their_numbers_and_their_verdicts(screen, server):
    page = screen.page
    page.goto(f"{server.url}/doctor?doctor-size=quick&doctor-tests={TESTED[0]}&doctor-tests={TESTED[1]}")
    screen.press("Examine")
    seen = set()
    work = page.locator(".st-key-doctor-work")
    screen.until(lambda: seen.add(work.inner_text()) or page.locator(".st-key-chart-doctor .js-plotly-plot .point").count() > 0)
    assert any(re.search(r"prompt \d of 3.*about \d+ s more", words, re.DOTALL) for words in seen), seen

    # every change that was tried stands in the chart and in its table, at full precision
    with page.expect_download() as waiting:
        page.locator(".st-key-chart-doctor").get_by_role("button", name="CSV").click()
    with open(Path(waiting.value.path()), encoding="utf-8", newline="") as file:
        tried = list(csv.DictReader(file))
    assert {one["test"] for one in tried} == set(TESTED) and len(tried) >= 4
    assert all(one["verdict"] in ("worse", "none") for one in tried), "the default pair is healthy"
    for one in tried:
        before, after, gain, low, high = (float(one[f"tau_{name}"]) for name in ("before", "after", "gain", "low", "high"))
        assert abs(after - before - gain) < 1e-12 and low <= gain <= high and 1 <= after
    off_by_one = [one for one in tried if one["test"] == "vocabulary"]
    assert len(off_by_one) == 2 and all(float(one["tau_gain"]) < -1 and one["verdict"] == "worse" for one in off_by_one)
    bars = page.locator(".st-key-chart-doctor .js-plotly-plot").evaluate("e => e.data[0].x.map(Number)")
    assert bars == [float(one["tau_gain"]) for one in tried]

    # the headline says the pair's tau over all positions: that of a change measured everywhere, or the table would disagree
    headline = page.get_by_test_id("stMain").get_by_role("heading", level=3).inner_text().replace("\u2009", " ")
    tau, positions = re.search(r"tau ([\d.]+) at (\d+) positions, no fault found", headline).groups()
    assert 1 < float(tau) < 4 and int(positions) >= max(int(one["positions"]) for one in tried)
    whole = [one for one in tried if int(one["positions"]) == int(positions)]
    assert all(tau == numbers.significant(float(one["tau_before"])) for one in whole)

    # the link brings the report, and what was asked, to another tab of the same studio
    page.reload()
    screen.until(lambda: page.locator(".st-key-chart-doctor .js-plotly-plot .point").count() > 0)
    assert screen.query()["doctor-size"] == "quick"
    assert page.get_by_test_id("stException").count() == 0 and [error for error in screen.errors if "404" not in error] == []
