"""Latency end to end: the real default pair is calibrated from the page in Chromium; numbers against the saved files."""

import json
import math
from statistics import median

import pytest

from bastion.figures import numbers
from bastion.latency import Calibration
from bastion.records import RunStore
from tests.browser import Screen, StudioServer

NEVER, FIRST = "never within the {} nodes probed", "compute from the first node"


@pytest.fixture(scope="module")
def server(default_model, tmp_path_factory):
    home = tmp_path_factory.mktemp("studio")
    (home / "models").symlink_to(default_model.parent.resolve(), target_is_directory=True)
    studio = StudioServer(home)
    yield studio
    studio.kill()


def visit(screen, address: str = "") -> None:
    screen.page.goto(address or f"{screen.server.url}/latency")
    screen.page.get_by_role("heading", name="Latency", exact=True).wait_for()


def shown(screen, name: str) -> str:
    return screen.page.locator(f".st-key-latency-{name}").inner_text()


def metrics(screen) -> dict[str, str]:
    found = screen.page.locator(".st-key-latency-numbers").get_by_test_id("stMetric").all()
    return {one.get_by_test_id("stMetricLabel").inner_text().strip(): one.get_by_test_id("stMetricValue").inner_text().strip() for one in found}


def branches(content: dict, n: int, c: int, raw: bool) -> tuple[float, float]:
    """Memory and compute seconds, written out from the file's numbers alone."""
    line, peaks = content["roofline"], content["peaks"]
    s = line["shape"]
    layers = s["layers"] * (2 * s["hidden"] * s["head_dim"] * (s["heads"] + s["kv_heads"]) + 3 * s["hidden"] * s["ffn"])
    head = s["hidden"] * s["vocab"]
    flops = n * (2 * (layers + head) + 4 * s["layers"] * s["heads"] * s["head_dim"] * (n + c))
    values = layers + head * (1 if s["tied"] else 2) + 2 * s["layers"] * s["kv_heads"] * s["head_dim"] * (n + c) + n * (
        s["layers"] * (4 * s["hidden"] + 4 * s["heads"] * s["head_dim"] + 2 * s["kv_heads"] * s["head_dim"] + 4 * s["ffn"])
        + s["hidden"] + s["vocab"] + 2 * s["layers"] * s["heads"] * (n + c))
    memory, compute = line["bytes_per_value"] * values / peaks["bytes_per_second"], flops / peaks["flops_per_second"]
    if raw:
        return memory, compute
    return line["alpha_m"] * memory + line["beta_m"], line["alpha_c"] * compute + line["beta_c"]


def rmse(content: dict, raw: bool) -> float:
    missed = [max(branches(content, n, c, raw)) - s for (n, c, s), out in zip(content["probes"], content["held_out"], strict=True) if out]
    return math.sqrt(sum(m * m for m in missed) / len(missed))


def overtaking(content: dict, context: int, raw: bool) -> str:
    most = max(n for n, _, _ in content["probes"])
    slower = [compute > memory for memory, compute in (branches(content, n, context, raw) for n in range(1, most + 1))]
    begun = next((n for n in range(2, most + 1) if slower[n - 1] and not slower[n - 2]), None)
    if begun is None and not slower[0]:
        return NEVER.format(most)
    words = f"{begun} nodes" if begun else FIRST
    last = next((n - 1 for n in range((begun or 1) + 1, most + 1) if not slower[n - 1]), most)
    return words if last == most else f"{words}, up to {last}"


def files(server) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (server.home / "calibrations").iterdir()}


def test_a_calibration_from_the_page_its_numbers_its_drift_and_a_stop(screen, browser, server):
    # a link straight to the page, as the first thing that a new server is asked for
    visit(screen)
    screen.page.get_by_role("heading", name="Calibrate this device").wait_for()
    assert "Explore" in screen.page.get_by_test_id("stSidebarNav").inner_text()
    screen.press("Calibrate")
    seen = set()
    screen.until(lambda: seen.add(shown(screen, "work").split(",")[0]) or metrics(screen).keys() >= {"RMSE, raw"})
    assert any("Timing verification" in words for words in seen), seen

    # the page says what the saved file says
    ((name, saved),) = files(server).items()
    content = json.loads(saved)
    fitted, raw = rmse(content, False), rmse(content, True)
    expected = {"RMSE, calibrated": numbers.seconds(fitted), "RMSE, raw": numbers.seconds(raw),
                "Taken off" if fitted <= raw else "Added": numbers.percent(abs(1 - fitted / raw)), "Drift": numbers.NONE}
    screen.until(lambda: metrics(screen) == expected)
    contexts = sorted({c for _, c, _ in content["probes"]})
    rows = [text for c in contexts for text in (str(c), overtaking(content, c, False), overtaking(content, c, True))]
    screen.until(lambda: [t.strip() for t in screen.page.locator(".st-key-latency-crossover td").all_inner_texts()] == rows)
    screen.until(lambda: numbers.significant(content["roofline"]["alpha_c"]) in shown(screen, "parameters"))
    screen.page.locator(".st-key-chart-latency-verify .js-plotly-plot .scatterlayer .point").first.wait_for(state="attached")
    points = screen.page.locator(".st-key-chart-latency-verify .js-plotly-plot").evaluate(
        "plot => plot.data.filter(t => t.mode === 'markers').map(t => t.name)")
    assert points.count("measured") == points.count("measured, held out") == len(contexts)
    screen.until(lambda: "latency-calibration=" in screen.page.url)
    address = screen.page.url

    # a real run appears in the drift, with its ratio, and carries the calibration
    screen.page.get_by_test_id("stSidebarNav").get_by_role("link", name="Explore").click()
    screen.page.get_by_role("combobox", name="Method").wait_for()
    screen.choose("bastion", 12)
    run_id = screen.decode("Name three colours.")
    screen.until(lambda: screen.status().startswith("Done"))
    visit(screen, address)
    run = RunStore(server.runs()).open(run_id)
    assert Calibration.from_json(run.info["calibration"]) == Calibration.from_json(content)
    ratio = median(step.seconds.verify / step.predicted_verify_seconds for step in run.steps if step.kind == "decode")
    screen.until(lambda: numbers.ratio(ratio) in shown(screen, "verdict"))
    assert "a verdict needs 3 runs" in shown(screen, "verdict")
    screen.until(lambda: run_id in screen.page.get_by_role("combobox", name="Predicted and measured in one run").input_value())
    screen.page.locator(".st-key-chart-latency-run-steps .js-plotly-plot").wait_for()

    # stopped, a second calibration leaves the first
    screen.press("Recalibrate")
    screen.until(lambda: "Timing verification" in shown(screen, "work"))
    screen.press("Stop")
    screen.until(lambda: "Stopped; nothing stored has changed." in shown(screen, "work"))
    assert files(server) == {name: saved}

    # the link shows the same view in another browser
    screen.page.get_by_text("linear", exact=True).click()
    screen.until(lambda: "latency-axes=linear" in screen.page.url)
    other = Screen(browser, server)
    visit(other, screen.page.url)
    other.until(lambda: metrics(other) == metrics(screen))
    chart = ".st-key-chart-latency-verify .js-plotly-plot"
    other.until(lambda: other.page.locator(chart).evaluate("plot => plot.layout.xaxis.type || 'linear'") == "linear")
    # Streamlit itself looks for its server beside a page's own address first
    for tab in (screen, other):
        assert [error for error in tab.errors if "404" not in error] == []
    other.context.close()
