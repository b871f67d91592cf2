"""The Surrogate page in Chromium on runs of the real default pair: its numbers against the saved records, and its way to Explore."""

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bastion.records import RunStore

from tests.browser import StudioServer, studio_home
from tests.recorded import record

PROMPTS = ("A farmer has 17 sheep and buys 5 more. How many sheep are there now?", "Write the days of the week.", "Why is the sky blue?")
BINS = 15


@pytest.fixture(scope="module")
def server(default_model, default_pair, tmp_path_factory):
    home = studio_home(tmp_path_factory.mktemp("studio"), default_model)
    store = RunStore(home / "runs")
    for place, prompt in enumerate(PROMPTS):
        for method in ("ddtree:9", "dflash") if place == 0 else ("ddtree:9",):
            record(store, default_pair, prompt, method, 28, prompt_set="test")
    studio = StudioServer(home)
    yield studio
    studio.kill()


def records(server):
    """Every decode step that was not cut, as the page is to count them: (run, step)."""
    runs = [RunStore(server.runs()).open(run.id) for run in RunStore(server.runs()).list()]
    return [(run, step) for run in runs for step in run.steps[1:] if len(step.emitted) == len(step.accepted)]


def metric(screen, label: str) -> str:
    return (
        screen.part("stMetric")
        .filter(has_text=label)
        .locator("[data-testid=stMetricValue]")
        .inner_text()
        .replace("\u2009", "")
        .replace("\u2212", "-")
    )


def csv(screen, button) -> pd.DataFrame:
    with screen.page.expect_download() as waiting:
        button.click()
    return pd.read_csv(io.BytesIO(Path(waiting.value.path()).read_bytes()), float_precision="round_trip")


def calibration_error(confidence: np.ndarray, agreed: np.ndarray) -> float:
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return sum(abs(agreed[place == b].sum() - confidence[place == b].sum()) for b in range(BINS)) / len(agreed)


def test_the_numbers_are_those_of_the_records_and_a_row_opens_its_step(screen, server):
    page, counted = screen.page, records(server)
    page.goto(f"{server.url}/surrogate")
    screen.part("stMetric").first.wait_for()
    screen.errors.clear()  # Streamlit looks for its own addresses beneath that of the page first, and the console says so
    screen.until(lambda: page.locator(".st-key-chart-surrogate-before-after .js-plotly-plot").count() == 1)

    surrogate = np.array([step.surrogate for _, step in counted])
    emitted = np.array([len(step.emitted) for _, step in counted])
    pearson, spearman = stats.pearsonr(surrogate, emitted).statistic, stats.spearmanr(surrogate, emitted).statistic
    assert metric(screen, "Steps") == str(len(counted))
    assert metric(screen, "Pearson") == f"{pearson:.2f}" and metric(screen, "Spearman") == f"{spearman:.2f}"

    # the exported numbers, at full precision
    table = csv(screen, page.locator(".st-key-chart-surrogate-scatter").get_by_role("button", name="CSV"))
    assert sorted(zip(table["run"], table["step"], table["surrogate"], table["emitted"])) == sorted(
        (run.id, step.index, step.surrogate, len(step.emitted)) for run, step in counted
    )
    found = csv(screen, page.locator(".st-key-chart-surrogate-correlation").get_by_role("button", name="CSV")).set_index("kind")
    assert abs(found.loc["pearson", "value"] - stats.pearsonr(table["surrogate"], table["emitted"]).statistic) < 1e-9
    assert abs(found.loc["spearman", "value"] - stats.spearmanr(table["surrogate"], table["emitted"]).statistic) < 1e-9

    # what the drafter said of its first choice at every reached depth, from the records
    said, came = [], []
    for _, step in counted:
        wanted = [*step.token_ids[step.accepted[1:]], step.bonus]
        for d in range(min(len(wanted), len(step.trace.marginal_token_ids))):
            said.append(float(np.exp(np.float64(step.trace.marginal_log_probs[d, 0]))))
            came.append(step.trace.marginal_token_ids[d, 0] == wanted[d])
    error = calibration_error(np.array(said), np.array(came, float))
    assert float(metric(screen, "Calibration error")) == pytest.approx(error, rel=0.06)  # two digits on the page
    outcomes = csv(screen, page.get_by_role("button", name="All outcomes, CSV"))
    first = outcomes[outcomes["rank"] == 1]
    assert len(first) == len(said)
    assert abs(calibration_error(first["confidence"].to_numpy(), first["agreed"].to_numpy(float)) - error) < 1e-9

    # a link to the default view holds its runs
    shown = ",".join(run.id for run in RunStore(server.runs()).list())
    assert screen.query().get("surrogate-runs") == shown
    page.get_by_test_id("chart-link-surrogate-scatter").click()
    screen.until(lambda: page.url.endswith("#surrogate-scatter") and screen.query().get("surrogate-runs") == shown)

    # the switches stand in the address, and a reload shows the same
    page.get_by_role("radio", name="accepted path").or_(page.get_by_role("button", name="accepted path")).first.click()
    screen.until(lambda: "surrogate-outcome" in screen.query())

    # the worst over-estimate opens in Explore, at its step
    run, step = max(counted, key=lambda pair: pair[1].surrogate - len(pair[1].accepted))
    link = page.locator(".st-key-surrogate-over a").first
    assert link.inner_text().strip() == f"step {step.index}, {run.info['method']}"
    link.click()
    screen.until(lambda: screen.query().get("run") == run.id and screen.query().get("step") == str(step.index))
    screen.until(lambda: screen.part("bastion-tree").get_attribute("data-step") == str(step.index))
    assert re.search(rf"Step {step.index} of", screen.part("step-label").inner_text())

    # and what was chosen is still chosen on the way back
    page.get_by_role("link", name="Surrogate").click()
    screen.until(lambda: screen.query().get("surrogate-outcome") == "accepted path")
    assert screen.errors == []
