"""Growth with arrays against growth from a heap: the same bits, ties and log included."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bastion.trees import AdaptiveBudget, DraftMarginals, FixedBudget, grow_best_first, paths
from bastion.trees.paths_at_once import paths_at_once
from tests.heap_growth import grow_by_heap

ROOT = 3


def drawn(seed: int, depth: int, k: int, grain: float, sharp: float, ruled_out: bool, dtype) -> DraftMarginals:
    """Rows that fall off as a drafter's do; a coarse `grain` makes many paths equal, 0 none."""
    rng = np.random.default_rng(seed)
    scores = -np.sort(rng.exponential(sharp, (depth, k)), axis=1)
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    if grain:
        log_probs = np.minimum(np.round(log_probs / grain) * grain, 0.0)
    if ruled_out:
        log_probs[rng.integers(depth), rng.integers(k):] = -np.inf
    return DraftMarginals(np.stack([rng.permutation(500)[:k] for _ in range(depth)]), log_probs.astype(dtype))


@st.composite
def marginals(draw):
    return drawn(draw(st.integers(0, 10**6)), draw(st.integers(1, 9)), draw(st.integers(1, 40)),
                 draw(st.sampled_from([0.0, 0.0625, 0.5, 2.0])), draw(st.sampled_from([0.1, 1.0, 4.0])), draw(st.booleans()),
                 draw(st.sampled_from([np.float32, np.float64])))


def same_bits(tree, reference) -> None:
    assert tree.stop_reason == reference.stop_reason
    for name in ("token_ids", "parents", "depths", "path_log_probs"):
        mine, other = getattr(tree, name), getattr(reference, name)
        assert mine.dtype == other.dtype and (mine == other).all() and len(mine) == len(other), name
    for field in dataclasses.fields(tree.growth):
        mine, other = getattr(tree.growth, field.name), getattr(reference.growth, field.name)
        np.testing.assert_array_equal(mine, other, err_msg=field.name, strict=True)


@given(marginals(), st.integers(1, 400), st.sampled_from(["creation", "ranks"]))
@settings(max_examples=40)
def test_the_paths_and_their_order(source, count, ties):
    """Also where arrays are not used because the heap is faster."""
    found = paths_at_once(source.log_probs, count, ties)
    if found is None:
        return
    reference = grow_by_heap(source, ROOT, FixedBudget(count + 1), ties=ties).growth
    for mine, other in zip(found, (-reference.path_log_probs, reference.parents, reference.depths, reference.ranks), strict=True):
        np.testing.assert_array_equal(mine, other)


@given(marginals(), st.integers(1, 700), st.booleans(), st.sampled_from(["creation", "ranks"]))
@settings(max_examples=40)
def test_fixed_trees(source, nodes, trace, ties):
    same_bits(grow_best_first(source, ROOT, FixedBudget(nodes), trace, ties), grow_by_heap(source, ROOT, FixedBudget(nodes), trace, ties))


@st.composite
def budgets(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    kind = draw(st.sampled_from(["flat", "line", "tiles", "ragged"]))
    sizes = np.arange(8192)
    table = {"flat": 1.0 + 0.0 * sizes, "line": 1.0 + 0.01 * sizes, "tiles": 1.0 + 0.2 * (sizes // 16),
             "ragged": 1.0 + np.cumsum(rng.choice([0.0, 0.0, 0.001, 0.05], 8192))}[kind]
    low = draw(st.sampled_from([1, 1, 5, 90]))
    return AdaptiveBudget(lambda nodes: table[nodes], draw(st.sampled_from([0.0, 0.5, 20.0])), draw(st.sampled_from([0.0, 0.25])),
                          min_nodes=low, max_nodes=low + draw(st.sampled_from([0, 3, 70, 400, 1500])),
                          bucket=draw(st.sampled_from([1, 16, "doubling"])), look_past=draw(st.sampled_from([0, 0, 1, 9, 32, 200])))


@given(marginals(), budgets(), st.booleans(), st.sampled_from(["creation", "ranks"]))
@settings(max_examples=80)
def test_adaptive_trees_and_their_logs(source, budget, trace, ties):
    same_bits(grow_best_first(source, ROOT, budget, trace, ties), grow_by_heap(source, ROOT, budget, trace, ties))


@given(marginals(), budgets(), st.booleans())
@settings(max_examples=40)
def test_without_any_heap(source, budget, trace):
    before, paths.HEAP_PATHS = paths.HEAP_PATHS, 0
    try:
        same_bits(grow_best_first(source, ROOT, budget, trace), grow_by_heap(source, ROOT, budget, trace))
    finally:
        paths.HEAP_PATHS = before


def test_equal_tokens_at_every_depth():
    """Each depth is one class of equals: everything hangs on the order of creation."""
    even = DraftMarginals(np.tile(np.arange(16), (6, 1)), np.full((6, 16), np.log(1 / 16)))
    for nodes in (100, 273, 900):
        same_bits(grow_best_first(even, ROOT, FixedBudget(nodes), True), grow_by_heap(even, ROOT, FixedBudget(nodes), True))


def test_certain_tokens_cost_nothing():
    """Rows of one certain token, and of several: paths as dear as the path above them."""
    rows = np.array([[0.0, -1.0, -1.0], [0.0, 0.0, -0.5], [0.0, -2.0, -np.inf], [0.0, 0.0, 0.0]])
    source = DraftMarginals(np.tile(np.arange(3), (4, 1)), rows)
    for count in (1, 2, 5, 30, 76, 200):
        found = paths_at_once(source.log_probs, count, "creation")
        reference = grow_by_heap(source, ROOT, FixedBudget(count + 1)).growth
        np.testing.assert_array_equal(found[1], reference.parents)
        np.testing.assert_array_equal(found[3], reference.ranks)


def test_where_arrays_are_not_the_way_the_heap_is_taken():
    above_one = DraftMarginals(np.tile(np.arange(40), (3, 1)), np.tile(np.linspace(1e-5, -3, 40), (3, 1)))
    all_equal = DraftMarginals(np.tile(np.arange(30), (9, 1)), np.zeros((9, 30)))
    for source in (above_one, all_equal):
        assert paths_at_once(source.log_probs, 100, "creation") is None
        same_bits(grow_best_first(source, ROOT, FixedBudget(101), True), grow_by_heap(source, ROOT, FixedBudget(101), True))


def test_nothing_to_draft():
    for log_probs in (np.zeros((0, 0)), np.zeros((3, 0)), np.full((2, 90), -np.inf)):
        costs, *rest = paths_at_once(log_probs, 70, "creation")
        assert len(costs) == 0 and all(len(column) == 0 and column.dtype == np.int64 for column in rest)
