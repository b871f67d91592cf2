"""The stop that looks past a step of the cost, against the plain rule and against every size tried in turn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bastion.errors import UserError
from bastion.trees import AdaptiveBudget, DraftMarginals, FixedBudget, Graft, grow_best_first, grow_grafted
from bastion.trees.stopping import Stop, pay_together, take_while_worth

FIXED = 0.5


def marginals_of(seed: int, depth: int = 4, width: int = 6) -> DraftMarginals:
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.gumbel(size=(depth, width)) * 1.5, axis=1)[:, ::-1]
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return DraftMarginals(np.stack([rng.permutation(50)[:width] for _ in range(depth)]), log_probs)


def graft_of(seed: int) -> Graft:
    rng, graft = np.random.default_rng(seed), Graft()
    for _ in range(3):
        graft.add(rng.integers(0, 9, 4).tolist(), rng.uniform(0.2, 0.9, 4).tolist())
    return graft


def by_best_first(seed, budget, trace=False):
    return grow_best_first(marginals_of(seed), 7, budget, trace=trace)


def by_grafting(seed, budget, trace=False):
    return grow_grafted(marginals_of(seed), graft_of(seed), 7, budget, deepest=5, trace=trace)


GROWTHS = pytest.mark.parametrize("grow", [by_best_first, by_grafting])
steps = st.lists(st.floats(0.0, 0.5), min_size=40, max_size=40)   # what each further node costs
seeds = st.integers(0, 200)


def cost_of(rises):
    table = 1.0 + np.concatenate(([0.0], np.cumsum(rises)))
    return lambda nodes: table[np.minimum(np.asarray(nodes), len(table)) - 1]


def speeds(grow, seed, cost, most):
    """Predicted tokens per second of every prefix, float64 [N]."""
    tree = grow(seed, FixedBudget(most))
    surrogate = np.cumsum(np.exp(tree.path_log_probs))
    return surrogate / (FIXED + cost(np.arange(1, len(surrogate) + 1)))


@GROWTHS
@settings(max_examples=40, deadline=None)
@given(seed=seeds, rises=steps, look=st.integers(1, 40))
def test_under_a_convex_cost_it_is_the_plain_rule(grow, seed, rises, look):
    cost = cost_of(sorted(rises))
    plain, ahead = (grow(seed, AdaptiveBudget(cost, FIXED, 0.0, max_nodes=40, look_past=far)) for far in (0, look))
    assert ahead.nodes == plain.nodes and ahead.stop_reason == plain.stop_reason
    np.testing.assert_array_equal(ahead.token_ids, plain.token_ids)


@GROWTHS
@settings(max_examples=60, deadline=None)
@given(seed=seeds, rises=steps, look=st.integers(0, 12), least=st.integers(1, 6), most=st.integers(6, 40))
def test_it_stops_at_the_best_size_within_reach(grow, seed, rises, look, least, most):
    """No size from the floor up to `look` nodes behind the refused one is faster; a greater one than the plain rule's is."""
    cost = cost_of(rises)
    speed = speeds(grow, seed, cost, most)
    tree = grow(seed, AdaptiveBudget(cost, FIXED, 0.0, min_nodes=least, max_nodes=most, look_past=look))
    plain = grow(seed, AdaptiveBudget(cost, FIXED, 0.0, min_nodes=least, max_nodes=most))
    assert tree.nodes <= most and tree.nodes >= plain.nodes
    within = speed[least - 1 : tree.nodes + 1 + look]
    assert speed[tree.nodes - 1] >= within.max() * (1 - 1e-12)
    assert speed[tree.nodes - 1] >= speed[plain.nodes - 1] * (1 - 1e-12)
    if look == 0:
        assert tree.nodes == plain.nodes


@GROWTHS
@settings(max_examples=30, deadline=None)
@given(seed=seeds, rises=steps)
def test_looking_at_everything_finds_the_best_of_all_sizes(grow, seed, rises):
    cost = cost_of(rises)
    speed = speeds(grow, seed, cost, 40)
    tree = grow(seed, AdaptiveBudget(cost, FIXED, 0.0, max_nodes=40, look_past=40))
    assert speed[tree.nodes - 1] == pytest.approx(speed.max(), rel=1e-12)


UNIFORM = DraftMarginals(np.tile(np.arange(8), (6, 1)), np.full((6, 8), math.log(1 / 8)))


def tiles(nodes):
    """Verified in tiles of four nodes."""
    return 1.0 + 0.3 * ((np.asarray(nodes) - 1) // 4)


def test_a_tile_by_hand():
    # 4 nodes: S = 1 + 3/8, time 1.5. The fifth alone: 1.5 / 1.8 < 1.375 / 1.5. Eight: 1.875 / 1.8 > 1.375 / 1.5.
    plain = grow_best_first(UNIFORM, 0, AdaptiveBudget(tiles, FIXED, 0.0, max_nodes=9))
    assert plain.nodes == 4 and plain.stop_reason == "price"
    # 6: 1.625 / 1.8 is still less, 7: 1.75 / 1.8 is more; then 8 pays by itself. Nine: 2 / 2.1 < 1.875 / 1.8.
    for look, nodes in ((1, 4), (2, 8), (3, 8), (32, 8)):
        tree = grow_best_first(UNIFORM, 0, AdaptiveBudget(tiles, FIXED, 0.0, max_nodes=9, look_past=look), trace=True)
        assert tree.nodes == nodes and tree.growth.bought.sum() == nodes - 1
        assert tree.growth.gains[3] < tree.growth.prices[3]   # the fifth, by itself


def test_the_fewest_that_pay_together():
    rule = AdaptiveBudget(tiles, FIXED, 0.0).stop_rule()
    assert pay_together(rule, 4, 1.375, [1 / 8] * 9) == 3
    assert pay_together(rule, 4, 1.375, [1 / 8] * 2) == 0
    assert pay_together(rule, 4, 1.375, []) == 0


def test_no_more_counts_as_looked_at_than_the_rule_has_heard():
    asked = []

    def costs(count):
        asked.append(count)
        return np.full(count, -math.log(0.01))

    for look_past, looked_at in ((0, 1), (5, 6), (40, 41)):
        budget = AdaptiveBudget(lambda nodes: np.asarray(nodes) * 1.0, 0.0, 0.0, look_past=look_past)
        assert take_while_worth(costs, budget, budget.stop_rule()) == Stop(0, looked_at, "price")
    assert asked == [16, 16, 16, 64]   # more is found only when the rule needs to see it


@GROWTHS
def test_the_log_says_what_was_bought_and_goes_64_pops_past_the_stop(grow):
    for look in (0, 3, 20):
        tree = grow(3, AdaptiveBudget(tiles, FIXED, 0.0, max_nodes=500, look_past=look), trace=True)
        log, bought = tree.growth, tree.nodes - 1
        assert log.bought.tolist() == [place < bought for place in range(len(log))]
        assert len(log) == bought + 1 + 64
        np.testing.assert_allclose(log.path_log_probs[:bought], tree.path_log_probs[1:])
        whole = grow(3, FixedBudget(len(log) + 1))   # the same order without a stop
        np.testing.assert_array_equal(log.token_ids, whole.token_ids[1:])
        np.testing.assert_array_equal(log.parents, whole.parents[1:])
        rule, surrogate = AdaptiveBudget(tiles, FIXED, 0.0).stop_rule(), np.cumsum(np.exp(whole.path_log_probs))
        sides = [rule(n, float(np.exp(log.path_log_probs[n - 1])), float(surrogate[n - 1])) for n in range(1, len(log) + 1)]
        np.testing.assert_allclose(np.column_stack([log.gains, log.prices]), sides, rtol=1e-9)


@pytest.mark.parametrize("look", [-1, 1.5, "far"])
def test_impossible_reaches_are_refused(look):
    with pytest.raises(UserError, match="look_past"):
        AdaptiveBudget(tiles, 0.0, 0.0, look_past=look)
