"""The plotly charts hold the records' numbers, and say what they show."""

import numpy as np
import pytest

from bastion import analysis
from bastion.errors import UserError
from bastion.figures import charts, frame
from bastion.figures.palette import PARTS, method_colour
from tests.synthetic_runs import make_prefill, make_run

RUN = make_run(12, seed=3, nodes=16)
MAKERS = (charts.speed_figure, charts.acceptance_histogram, charts.latency_figure, charts.parts_figure)


def trace(figure, name):
    return next(t for t in figure.data if t.name == name)


def test_speed_ends_at_the_runs_own_number_and_says_the_speedup():
    figure = charts.speed_figure(RUN, plain_tokens_per_second=10.0)
    own = analysis.tokens_per_second(RUN)
    assert trace(figure, "bastion").y[-1] == pytest.approx(own)
    assert list(trace(figure, "bastion").x) == list(range(1, 13))
    assert charts.numbers.ratio(own / 10) in figure.layout.title.text
    assert figure.layout.shapes[0].y0 == 10.0 and figure.layout.shapes[0].line.dash == "solid"
    assert trace(figure, "bastion").line.color == method_colour("bastion")


def test_an_estimated_yardstick_is_dashed_and_named_so():
    figure = charts.speed_figure(RUN, 10.0, measured=False)
    assert figure.layout.shapes[0].line.dash == "dash"
    assert "estimated" in figure.layout.annotations[0].text
    assert not charts.speed_figure(RUN).layout.shapes


def test_the_histogram_counts_every_step_once_and_marks_the_depth_limit():
    depth = max(len(step.accepted) - 1 for step in RUN)
    figure = charts.acceptance_histogram(RUN, depth)
    lengths = analysis.acceptance_lengths(RUN)
    total = sum(np.array(t.y) for t in figure.data)
    assert total.sum() == len(lengths) == 12
    for length, steps in zip(figure.data[0].x, total, strict=True):
        assert steps == lengths.count(length)
    limited = sum(len(step.accepted) - 1 == depth for step in RUN)
    assert sum(trace(figure, "hit the depth limit").y) == limited > 0
    assert charts.numbers.percent(limited / 12) in figure.layout.annotations[0].text


def test_latency_shows_measured_solid_and_predicted_dashed_in_ms():
    figure = charts.latency_figure(RUN)
    rounds = analysis.decode_steps(RUN)
    assert list(trace(figure, "measured").y) == pytest.approx([1e3 * s.seconds.verify for s in rounds])
    assert list(trace(figure, "predicted").y) == pytest.approx([1e3 * s.predicted_verify_seconds for s in rounds])
    assert (trace(figure, "measured").line.dash, trace(figure, "predicted").line.dash) == ("solid", "dash")
    assert "RMSE" in figure.layout.title.text


def test_latency_without_predictions_claims_none():
    figure = charts.latency_figure(make_run(3, priced=False))
    assert [t.name for t in figure.data] == ["measured"]
    assert "redicted" not in figure.layout.title.text + figure.layout.annotations[0].text


def test_parts_stack_up_to_the_step_time():
    figure = charts.parts_figure(RUN)
    assert [t.name for t in figure.data] == list(PARTS)
    total = sum(np.array(t.y) for t in figure.data)
    assert list(total) == pytest.approx([1e3 * s.seconds.total for s in analysis.decode_steps(RUN)])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dark", [False, True])
def test_every_chart_has_title_axes_with_units_and_caption(make, dark):
    figure = make(RUN, dark=dark)
    assert figure.layout.title.text and figure.layout.xaxis.title.text and figure.layout.yaxis.title.text
    assert "easured" in figure.layout.annotations[0].text
    assert figure.layout.paper_bgcolor == frame.GROUND["dark" if dark else "light"]


@pytest.mark.parametrize("make", MAKERS)
def test_a_run_without_steps_is_refused_in_one_sentence(make):
    with pytest.raises(UserError, match="no decode step"):
        make([make_prefill()])
