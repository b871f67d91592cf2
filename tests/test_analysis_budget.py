"""Budgets by prediction and with hindsight, against sums and searches written out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bastion.analysis import hindsight_nodes, speed_by_nodes, surrogate_by_nodes
from bastion.step import GrowthLog, StepRecord, StepSeconds, StepTrace
from tests.synthetic_runs import make_prefill, make_step


def hand_step(bonus=9, emitted=None, predicted=(1.0, 1.5, 2.0, 2.5, 3.0, 3.5), trace=True):
    """Root; 1: token 5 under it; 2: token 6 under 1; 3: token 7 under the root. Accepted: 0, 1, 2.

    Popped after the stop: 4: token 8 under 1; 5: token 9 under 2. Path probabilities of pops 1..5:
    0.5, 0.4, 0.25, 0.2, 0.125.
    """
    path = np.log([1, 0.5, 0.4, 0.25])
    growth = GrowthLog(
        token_ids=np.array([5, 6, 7, 8, 9]), parents=np.array([0, 1, 0, 1, 2]),
        depths=np.array([1, 2, 1, 2, 3]), ranks=np.array([0, 0, 1, 1, 0]),
        path_log_probs=np.log([0.5, 0.4, 0.25, 0.2, 0.125]), gains=np.full(5, np.nan),
        prices=np.full(5, np.nan), bought=np.array([True] * 3 + [False] * 2),
        dropped=np.zeros(5, bool))
    output = [5, 6, bonus][:emitted]
    return StepRecord(
        index=1, kind="decode", emitted=output, context=3, root=4,
        token_ids=np.array([4, 5, 6, 7]), parents=np.array([-1, 0, 1, 0]),
        depths=np.array([0, 1, 2, 1]), path_log_probs=path, accepted=np.array([0, 1, 2]),
        bonus=bonus, surrogate=2.15, stop_reason="price",
        seconds=StepSeconds(0.25, 0.125, 2.0, 0.125), top2_gaps=np.zeros(len(output), np.float32),
        trace=StepTrace(
            marginal_token_ids=np.zeros((3, 2), np.int64),
            marginal_log_probs=np.zeros((3, 2), np.float32),
            target_log_probs=np.zeros(4, np.float32), target_top_ids=np.zeros((4, 0), np.int64),
            target_top_log_probs=np.zeros((4, 0), np.float32), growth=growth,
            predicted_seconds=np.array(predicted), predicted_draft_seconds=0.25,
            predicted_other_seconds=0.25) if trace else None)


def test_surrogate_runs_past_the_stop():
    assert surrogate_by_nodes(hand_step()) == pytest.approx([1, 1.5, 1.9, 2.15, 2.35, 2.475])
    assert surrogate_by_nodes(hand_step(trace=False)) == pytest.approx([1, 1.5, 1.9, 2.15])


def test_speed_is_surrogate_over_step_time():
    speed = speed_by_nodes(hand_step())
    assert speed.nodes.tolist() == [1, 2, 3, 4, 5, 6]
    assert speed.step_seconds.tolist() == [1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    assert speed.tokens_per_second == pytest.approx(
        [1 / 1.5, 0.75, 0.76, 2.15 / 3, 2.35 / 3.5, 2.475 / 4])
    assert speed.best == 3 and speed.chosen == 4


def test_predictions_shorter_than_the_log_end_the_curve():
    assert speed_by_nodes(hand_step(predicted=(1.0, 1.5))).nodes.tolist() == [1, 2]


def test_what_was_not_predicted_is_taken_as_measured():
    step = hand_step()
    step = replace(step, trace=replace(step.trace, predicted_draft_seconds=None,
                                       predicted_other_seconds=None))
    assert speed_by_nodes(step).step_seconds[0] == 1.0 + 0.25 + 0.25


@pytest.mark.parametrize("step", [make_prefill(), hand_step(trace=False), hand_step(predicted=())])
def test_no_prediction_no_curve(step):
    assert speed_by_nodes(step) is None


def test_hindsight_weighs_known_tokens_against_time():
    # Tokens by n: 1, 2, 3, 3, 3 (and the bonus, 9, is pop 5 under node 2: 4 at n = 6).
    cheap = hindsight_nodes(hand_step(predicted=(1.0, 1.1, 1.2, 1.3, 1.4, 1.5)))
    assert (cheap.nodes, cheap.emitted) == (6, 4) and cheap.reaches_past_the_tree
    assert cheap.tokens_per_second == pytest.approx(4 / 2.0)
    assert cheap.smallest_with_path == 3
    steep = hindsight_nodes(hand_step(predicted=(1.0, 1.1, 1.2, 5.0, 6.0, 7.0)))
    assert (steep.nodes, steep.emitted) == (3, 3)
    ruinous = hindsight_nodes(hand_step(predicted=(1.0, 9.0, 30.0, 60.0, 61.0, 62.0)))
    assert (ruinous.nodes, ruinous.emitted) == (1, 1)


def test_hindsight_without_an_unbought_bonus_or_without_prices():
    other = hindsight_nodes(hand_step(bonus=3, predicted=(1.0, 1.1, 1.2, 1.3, 1.4, 1.5)))
    assert (other.nodes, other.emitted, other.reaches_past_the_tree) == (3, 3, False)
    unpriced = hindsight_nodes(hand_step(predicted=()))
    assert (unpriced.nodes, unpriced.emitted, unpriced.tokens_per_second) == (6, 4, None)
    untraced = hindsight_nodes(hand_step(trace=False))
    assert (untraced.nodes, untraced.emitted) == (3, 3)
    assert hindsight_nodes(make_prefill()) is None


def test_tokens_past_the_end_of_the_output_are_worth_nothing():
    cut = hindsight_nodes(hand_step(emitted=1, predicted=(1.0, 1.01, 1.02, 1.03, 1.04, 1.05)))
    assert (cut.nodes, cut.emitted, cut.smallest_with_path) == (1, 1, 1)
    assert not cut.reaches_past_the_tree


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(1, 24), st.integers(0, 12))
def test_hindsight_is_the_best_of_all_sizes(seed, nodes, beyond):
    """Against a plain search: for each n, walk the known path while its nodes are among the first n."""
    step = make_step(1, seed, nodes=nodes, beyond=beyond)
    growth, trace = step.trace.growth, step.trace
    path = step.accepted.tolist()
    for row in range(len(growth)):
        if not growth.bought[row] and growth.parents[row] == path[-1] \
                and growth.token_ids[row] == step.bonus:
            path.append(row + 1)
            break
    speeds = []
    for n in range(1, len(growth) + 2):
        tokens = next((k for k, node in enumerate(path) if node >= n), len(path))
        speeds.append(tokens / (trace.predicted_seconds[n - 1] + 0.012))
    found = hindsight_nodes(step)
    assert found.nodes == int(np.argmax(speeds)) + 1
    assert found.tokens_per_second == pytest.approx(max(speeds), rel=1e-12)
    assert found.smallest_with_path == max(step.accepted.tolist()) + 1
    speed = speed_by_nodes(step)
    assert speed.surrogate[step.nodes - 1] == pytest.approx(step.surrogate, rel=1e-12)
    assert speed.tokens_per_second[speed.best - 1] == speed.tokens_per_second.max()
