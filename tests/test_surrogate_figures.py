"""The charts of the Surrogate page: what they draw is what the records hold, and what they say is escaped and fits."""

import json

import numpy as np
import pytest

from bastion.analysis.surrogate_correlation import PUBLISHED_PEARSON, Correlation, Estimate
from bastion.analysis.surrogate_evidence import run_evidence
from bastion.analysis.surrogate_groups import grouped
from bastion.analysis.surrogate_report import surrogate_report
from bastion.analysis.temperature import DepthTemperatures
from bastion.figures.surrogate_frame import LINE
from bastion.figures.surrogate_lengths import groups_figure, lengths_figure, stranded_words
from bastion.figures.surrogate_reliability import agreement_figure, finding, reliability_figure
from bastion.figures.surrogate_scatter import DENSE, correlation_figure, hexagon_counts, scatter_figure, within
from bastion.figures.surrogate_temperature import errors_figure, nodes_figure, temperatures_figure
from tests.test_analysis_surrogate import many

TITLE = 58  # characters a chart of 430 pixels shows


@pytest.fixture(scope="module")
def few():
    return surrogate_report([run_evidence(run) for run in many()], "run", resamples=60)


@pytest.fixture(scope="module")
def dense():
    return surrogate_report([run_evidence(run) for run in many(12, 50)], "run", resamples=60)


def traces(figure, **wanted):
    return [trace for trace in json.loads(figure.to_json())["data"] if all(trace.get(key) == value for key, value in wanted.items())]


def figures(report, dark):
    t = DepthTemperatures(np.array([1.5, 1.0]), np.array([True, False]), np.array([90, 3]), np.array([2.0, 1.0]), np.array([1.9, 1.0]))
    return [
        scatter_figure(report.frame, report.correlation, "emitted", dark),
        correlation_figure([("a", report.correlation)], "runs resampled", dark),
        reliability_figure(report.depths_all, "depth", "Reliability by depth", dark),
        agreement_figure(report.ranks, "rank", "By rank", dark, True),
        lengths_figure(report.clipping, dark),
        groups_figure(grouped(report.frame, report.seen, "method"), "method", "emitted", dark),
        temperatures_figure(t, "every other prompt", dark),
        errors_figure(report.depths, report.depths, dark),
        nodes_figure(np.array([3, 4, 4]), np.array([4, 4, 5]), dark),
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_titles_and_captions_fit_a_narrow_page_and_say_what_is_measured(few, dense, dark):
    for report in (few, dense):
        for figure in figures(report, dark):
            caption = figure.layout.annotations[0].text
            assert figure.layout.title.text and len(figure.layout.title.text) <= TITLE, figure.layout.title.text
            assert max(map(len, caption.split("<br>"))) <= LINE
            assert any(word in caption for word in ("Measured", "Fitted", "counterfactual")), caption


def test_points_are_moved_in_the_drawing_and_exact_in_their_data(few):
    assert len(few.frame) < DENSE
    figure = scatter_figure(few.frame, few.correlation)
    drawn = [trace for trace in figure.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in drawn) == len(few.frame) and {trace.name for trace in drawn} == set(few.frame["method"])
    for trace in drawn:
        exact = np.array([row[1] for row in trace.customdata], float)
        assert np.abs(np.array(trace.y) - exact).max() <= 0.16 + 1e-9 and set(trace.x) <= set(few.frame["surrogate"])
        assert exact.tolist() == few.frame[few.frame["method"] == trace.name]["emitted"].tolist()
    again = scatter_figure(few.frame, few.correlation)
    assert figure.to_json() == again.to_json()


def test_hexagons_count_every_step_once(dense):
    assert len(dense.frame) >= DENSE
    figure = scatter_figure(dense.frame, dense.correlation)
    counts = [int(text.replace("\u2009", "")) for trace in figure.data if trace.mode == "markers" for text in trace.customdata]
    assert sum(counts) == len(dense.frame) and len(figure.layout.shapes) == len(counts)


def test_a_point_is_in_the_hexagon_it_is_counted_in():
    rng = np.random.default_rng(0)
    x, y, width = rng.uniform(1, 6, 500), rng.integers(1, 6, 500), 0.3
    cx, cy, counts = hexagon_counts(x, y, width)
    inside = (np.abs(x[:, None] - cx) <= width / 2 + 1e-12) & (y[:, None] == cy)
    assert (inside.sum(0) == counts).all() and (inside.sum(1) == 1).all() and counts.sum() == 500
    shifted = (cx / width) % 1
    assert (np.isclose(shifted, 0.5) == (cy % 2 == 1)).all()


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.5, 0.7, "below"), (0.83, 0.9, "above"), (0.7, 0.85, "reaches"), (np.nan, np.nan, "beside")]
)
def test_the_published_claim_is_a_band_and_the_title_says_where_we_are(low, high, said):
    found = Correlation(Estimate(0.84 if said == "above" else 0.75, low, high), Estimate(0.5, 0.4, 0.6), 100, 10, 1000)
    figure = correlation_figure([("these <b>steps", found)], "runs resampled")
    assert said in figure.layout.title.text
    band = figure.layout.shapes[0]
    assert (band.x0, band.x1) == PUBLISHED_PEARSON == (0.79, 0.82)
    pearson = traces(figure, name="Pearson")[0]
    assert "&lt;b&gt;" in figure.layout.yaxis.ticktext[0] and "&lt;b&gt;" in pearson["customdata"][0]


def test_a_correlation_is_written_with_its_interval():
    assert within(Estimate(-0.254, -0.5, 0.1)) == "\u22120.25, \u22120.50 to 0.10" and within(Estimate(0.5, np.nan, np.nan)) == "0.50"


def test_reliability_draws_the_bins(few):
    figure = reliability_figure(few.depths_all, "depth", "Reliability by depth")
    points = [trace for trace in figure.data if trace.mode == "markers"]
    assert len(points) == len(few.depths_all)
    for trace, table in zip(points, few.depths_all.values()):
        held = table.count > 0
        np.testing.assert_array_equal(trace.x, table.confidence[held])
        np.testing.assert_array_equal(trace.y, table.agreement[held])
        np.testing.assert_allclose(trace.y + trace.error_y.array, table.agreement_high[held])
    assert finding(few.first_choice)


def test_lengths_stack_to_all_steps_and_the_estimate_is_called_one(few):
    figure = lengths_figure(few.clipping)
    assert sum(sum(trace.y) for trace in figure.data) == len(few.frame)
    assert [trace.name for trace in figure.data] == ["ended before", "at the drafter's depth"]
    assert few.clipping.clipped_steps and stranded_words(few.clipping).startswith(("Estimated", "Every step"))


def test_groups_draw_the_means_and_escape_names(few):
    table = grouped(few.frame, few.seen, "method").assign(group=["<b>x</b>", "y"])
    figure = groups_figure(table, "method", "emitted")
    assert figure.data[-1].x.tolist() == table["mean_emitted"].tolist() and "<b>" not in figure.layout.title.text
    assert list(figure.layout.yaxis.ticktext)[0] == "&lt;b&gt;x&lt;/b&gt;"
