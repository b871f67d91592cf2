"""Budgets: their rule, their rounding, and what they refuse."""

import math

import numpy as np
import pytest

from bastion.errors import UserError
from bastion.trees import AdaptiveBudget, DraftMarginals, FixedBudget, grow_best_first

UNIFORM = DraftMarginals(np.tile(np.arange(8), (6, 1)), np.full((6, 8), np.log(1 / 8)))


def slope(nodes):
    return 0.010 + 0.001 * nodes


def test_the_rule_by_hand():
    # At 3 nodes, p = 0.5, S = 2: 0.5 * (4 + 1 + 0.013) against 2 * 0.001.
    gain, price = AdaptiveBudget(slope, 4.0, 1.0).stop_rule()(3, 0.5, 2.0)
    assert gain == pytest.approx(0.5 * 5.013, rel=1e-12)
    assert price == pytest.approx(0.002, rel=1e-9)


def test_seconds_may_take_one_size_at_a_time():
    def one_by_one(nodes):
        return max(0.011, 0.002 * nodes) if nodes > 2 else 0.011

    def by_arrays(nodes):
        return np.where(nodes > 2, np.maximum(0.011, 0.002 * nodes), 0.011)

    trees = [
        grow_best_first(UNIFORM, 0, AdaptiveBudget(seconds, 0.05, 0.01), trace=True)
        for seconds in (one_by_one, by_arrays)
    ]
    assert 1 < trees[0].nodes < 200 and trees[0].stop_reason == "price"
    np.testing.assert_array_equal(trees[0].token_ids, trees[1].token_ids)
    np.testing.assert_array_equal(trees[0].growth.gains, trees[1].growth.gains)


def test_a_vectorised_latency_is_asked_few_times():
    calls = []

    def seconds(nodes):
        calls.append(nodes)
        return slope(nodes)

    tree = grow_best_first(UNIFORM, 0, AdaptiveBudget(seconds, 1e9, 0.0, max_nodes=2000))
    assert tree.nodes == 2000 and tree.stop_reason == "max nodes"
    assert len(calls) <= 7
    assert np.concatenate(calls).tolist() == list(range(1, 1 + sum(map(len, calls))))


def test_a_constant_latency_never_stops_growth():
    tree = grow_best_first(UNIFORM, 0, AdaptiveBudget(lambda nodes: 0.02, 0.0, 0.0, max_nodes=300))
    assert tree.nodes == 300


def test_the_floor_holds_whatever_the_price():
    dear = AdaptiveBudget(lambda nodes: nodes * 1.0, 0.0, 0.0, min_nodes=12)
    tree = grow_best_first(UNIFORM, 0, dear)
    assert tree.nodes == 12 and tree.stop_reason == "price"
    assert (tree.growth.gains[4:11] < tree.growth.prices[4:11]).all()


@pytest.mark.parametrize(
    ("low", "bucket", "nodes", "expected"),
    [
        (1, 1, 5, 5), (32, 32, 63, 32), (32, 32, 64, 64), (32, 32, 169, 160), (32, 16, 20, 20),
        (1, "doubling", 5, 4), (1, "doubling", 194, 128), (3, "doubling", 23, 12),
        (3, "doubling", 24, 24), (32, "doubling", 100, 64), (8, "doubling", 5, 5),
    ],
)  # fmt: skip
def test_rounding_down_to_a_bucket(low, bucket, nodes, expected):
    assert AdaptiveBudget(slope, 0.0, 0.0, min_nodes=low, bucket=bucket).rounded(nodes) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedBudget(0),
        lambda: AdaptiveBudget(slope, 0.0, 0.0, min_nodes=0),
        lambda: AdaptiveBudget(slope, 0.0, 0.0, min_nodes=9, max_nodes=8),
        lambda: AdaptiveBudget(slope, 0.0, 0.0, bucket=0),
        lambda: AdaptiveBudget(slope, 0.0, 0.0, bucket="halving"),
        lambda: AdaptiveBudget(slope, -1.0, 0.0),
        lambda: AdaptiveBudget(slope, math.nan, 0.0),
        lambda: grow_best_first(UNIFORM, 0, AdaptiveBudget(lambda nodes: nodes * np.nan, 0.0, 0.0)),
    ],
)
def test_impossible_budgets_are_refused(make):
    with pytest.raises(UserError):
        make()


def test_a_gain_equal_to_the_price_is_not_bought():
    # A certain token: p = S = 1, so with no fixed cost gain = T(1) = 1 and price = T(2) - T(1) = 1.
    certain = DraftMarginals(np.array([[4]]), np.array([[0.0]]))
    tree = grow_best_first(certain, 0, AdaptiveBudget(lambda nodes: nodes * 1.0, 0.0, 0.0))
    assert tree.growth.gains[0] == tree.growth.prices[0] == 1.0
    assert tree.nodes == 1 and tree.stop_reason == "price"
