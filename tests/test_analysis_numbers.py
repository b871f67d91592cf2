"""tau, speed, histogram, depth limit, surrogate pairs and latency table on steps made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from bastion import analysis
from bastion.step import StepSeconds
from tests.synthetic_runs import make_prefill, make_run, make_step


def timed(index, accepted, draft, verify, predicted=None, cut=None, context=10):
    step = make_step(index, seed=1, nodes=40, depth=4, accepted_depth=accepted, emitted=cut,
                     context=context)
    return replace(step, seconds=StepSeconds(draft, 0.0, verify, 0.0),
                   predicted_verify_seconds=predicted)


@pytest.fixture
def steps():
    """Emitted 1 (prefill), 3, 5, 1, 2 (accepted 4 + bonus, cut to 2)."""
    prefill = replace(make_prefill(1), seconds=StepSeconds(0, 0, 7.0, 0))
    return [prefill, timed(1, 2, 1.0, 2.0, 1.0, context=10), timed(2, 4, 1.0, 3.0, 4.0, context=13),
            timed(3, 0, 0.5, 0.5, None), timed(4, 4, 1.0, 1.0, 1.0, cut=2, context=19)]


def test_tau_and_speed_leave_the_prefill_out(steps):
    assert analysis.acceptance_lengths(steps) == [3, 5, 1, 2]
    assert analysis.tau(steps) == 11 / 4
    assert analysis.seconds_decode(steps) == 10.0 and analysis.seconds_prefill(steps) == 7.0
    assert analysis.tokens_per_second(steps) == 1.1
    assert len(analysis.output_ids(steps)) == 12
    assert analysis.tau(steps[:1]) is None and analysis.tokens_per_second(steps[:1]) is None


def test_progress_ends_at_the_totals(steps):
    progress = analysis.progress(steps)
    assert progress.step.tolist() == [1, 2, 3, 4]
    assert progress.tokens.tolist() == [3, 8, 9, 11]
    assert progress.seconds.tolist() == [3, 7, 8, 10]
    assert progress.tau.tolist() == [3, 4, 3, 2.75]
    assert progress.tokens_per_second.tolist() == [1, 8 / 7, 9 / 8, 1.1]
    assert len(analysis.progress(steps[:1]).step) == 0


def test_speedup_over_the_yardstick(steps):
    assert analysis.speedup(steps, {"tokens_per_second": 0.55}) == pytest.approx(2.0)
    assert analysis.speedup(steps, 0.55) == pytest.approx(2.0)
    assert analysis.speedup(steps, None) is None
    assert analysis.speedup(steps, {"tokens_per_second": None}) is None
    assert analysis.speedup(steps[:1], 0.5) is None


def test_plain_speed_is_estimated_from_one_node(steps):
    first = [step.trace.predicted_seconds[0] for step in steps[1:]]
    assert analysis.estimated_plain_speed(steps) == pytest.approx(1 / np.mean(first))
    assert analysis.estimated_plain_speed(make_run(3, trace=False)) is None


def test_histogram_counts_every_step(steps):
    assert analysis.acceptance_histogram(steps).tolist() == [0, 1, 1, 1, 0, 1]
    assert analysis.acceptance_histogram(steps, 8).tolist() == [0, 1, 1, 1, 0, 1, 0, 0, 0]
    assert analysis.acceptance_histogram([], 3).tolist() == [0, 0, 0, 0]


def test_depth_limit_share_looks_at_the_path_not_at_what_was_kept(steps):
    assert analysis.drafter_depth(steps) == 4
    assert analysis.depth_limit_share(steps) == 0.5
    assert analysis.depth_limit_share(steps, depth=2) == 0.75
    assert analysis.depth_limit_share(steps[:1]) is None
    assert analysis.depth_limit_share(make_run(2, trace=False)) is None


def test_surrogate_pairs(steps):
    pairs = analysis.surrogate_pairs(steps)
    assert pairs.walked.tolist() == [3, 5, 1, 5] and pairs.emitted.tolist() == [3, 5, 1, 2]
    assert pairs.surrogate.tolist() == [step.surrogate for step in steps[1:]]
    assert pairs.correlation == pytest.approx(
        np.corrcoef([s.surrogate for s in steps[1:]], [3, 5, 1, 5])[0, 1])
    assert analysis.surrogate_pairs(steps[:2]).correlation is None


def test_latency_table_holds_the_steps_that_were_predicted(steps):
    table = analysis.latency_table(steps)
    assert table.step.tolist() == [1, 2, 4] and table.context.tolist() == [10, 13, 19]
    assert table.predicted.tolist() == [1, 4, 1] and table.measured.tolist() == [2, 3, 1]
    assert table.rmse == pytest.approx(np.sqrt(2 / 3))
    assert table.relative_bias == pytest.approx(0.0)
    empty = analysis.latency_table(steps[:1])
    assert empty.rmse is None and empty.relative_bias is None
