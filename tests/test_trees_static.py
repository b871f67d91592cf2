"""Trees of a fixed shape: Sequoia's programme against its published code and against every tree, SpecInfer's widths."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.errors import UserError
from bastion.trees import DraftMarginals, FixedBudget, grow_best_first, grow_static, sequoia_shape, width_shape
from tests.golden import golden

SEQUOIA = json.loads(golden("sequoia.json").read_text())
CASES = [case for case in SEQUOIA["cases"] if case["kind"] == "fixed_budget"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['vector']}-{case['max_budget']}-{case['max_depth_levels_including_root']}")
def test_expected_tokens_are_those_of_the_published_programme(case):
    rates = SEQUOIA["vectors"][case["vector"]][1:-1]
    for levels, expected in enumerate(case["results_by_levels"]):
        if levels < 1:
            continue
        if expected is None:
            continue   # the reference begins at a depth of its own
        shape = sequoia_shape(rates, case["max_budget"], levels)
        assert shape.nodes == case["max_budget"] and shape.depths.max() < levels
        assert shape.expected_tokens(rates) == pytest.approx(expected, rel=2e-6)
    best = sequoia_shape(rates, case["max_budget"], case["max_depth_levels_including_root"])
    assert best.expected_tokens(rates) == pytest.approx(case["expected_accepted_tokens_float64_from_tree"], rel=2e-6)
    assert best.expected_tokens(rates) >= case["expected_accepted_tokens_float64_from_tree"] - 1e-6


def every_tree(nodes: int, width: int, levels: int):
    """All trees of exactly `nodes` nodes whose nodes have the first k ranks as children: (expected tokens given rates)."""
    def forests(count, first, levels):   # children of ranks first.. , count nodes in all; yields lists of (rank, tree)
        yield from ([[]] if count == 0 else [])
        if first < width and count and levels:
            for size in range(1, count + 1):
                for tree in trees(size, levels):
                    for rest in forests(count - size, first + 1, levels):
                        yield [(first, tree), *rest]

    def trees(count, levels):
        if levels >= 1:
            yield from forests(count - 1, 0, levels - 1)

    yield from trees(nodes, levels)


def value(tree, rates) -> float:
    return 1.0 + sum(rates[rank] * value(child, rates) for rank, child in tree)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=3), st.integers(1, 7), st.integers(1, 5))
def test_no_tree_of_the_same_size_expects_more(raw, nodes, levels):
    rates = [rate / max(sum(raw), 1.0) for rate in raw]
    values = [value(tree, rates) for tree in every_tree(nodes, len(rates), levels)]
    if not values:
        with pytest.raises(UserError, match="fewer nodes"):
            sequoia_shape(rates, nodes, levels)
        return
    shape = sequoia_shape(rates, nodes, levels)
    assert shape.expected_tokens(rates) == pytest.approx(max(values), abs=1e-12)
    assert shape.nodes == nodes and shape.depths.max() < levels
    assert (shape.parents[1:] < np.arange(1, nodes)).all() and (shape.depths[1:] == shape.depths[shape.parents[1:]] + 1).all()
    for node in range(nodes):   # the first ranks, each once
        assert sorted(shape.ranks[shape.parents == node]) == list(range((shape.parents == node).sum()))


def test_falling_rates_make_the_best_first_tree():
    rates = [0.5, 0.2, 0.1, 0.05]
    log_probs = np.log(np.tile(rates, (9, 1)))
    ids = np.arange(36).reshape(9, 4)
    for nodes in (1, 2, 7, 16, 40):
        tree = grow_best_first(DraftMarginals(ids, log_probs), 99, FixedBudget(nodes))
        assert sequoia_shape(rates, nodes, 10).expected_tokens(rates) == pytest.approx(tree.surrogate, rel=1e-12)


@pytest.mark.parametrize(("rates", "nodes", "levels"), [([0.5], 5, 4), ([], 3, None), ([0.9, 0.9], 3, None), ([float("nan")], 2, None),
                                                         ([0.5, -0.1], 2, None), ([0.5], 0, None), ([0.5, 0.2], 8, 3), ([0.5], 2, 0)])
def test_what_cannot_be_built_is_one_sentence(rates, nodes, levels):
    with pytest.raises(UserError):
        sequoia_shape(rates, nodes, levels)


def test_widths_and_the_tree_over_marginals():
    shape = width_shape([2, 1, 2])
    assert shape.parents.tolist() == [-1, 0, 0, 1, 2, 3, 3, 4, 4] and shape.ranks.tolist() == [0, 0, 1, 0, 0, 0, 1, 0, 1]
    marginals = DraftMarginals(np.array([[5, 6, 7], [8, 9, 10]]), np.log([[0.5, 0.3, 0.1], [0.6, 0.2, 0.1]]))
    tree = grow_static(marginals, 3, shape, "widths")
    assert tree.token_ids.tolist() == [3, 5, 6, 8, 8] and tree.parents.tolist() == [-1, 0, 0, 1, 2]   # no third depth is drafted
    assert np.exp(tree.path_log_probs) == pytest.approx([1, 0.5, 0.3, 0.3, 0.18])
    closed = DraftMarginals(np.array([[5, 6], [8, 9]]), np.array([[np.log(0.5), -np.inf], [np.log(0.6), -np.inf]]))
    assert grow_static(closed, 3, width_shape([2, 2]), "widths").token_ids.tolist() == [3, 5, 8]
    for widths in ([], [0], [2, -1]):
        with pytest.raises(UserError):
            width_shape(widths)


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_best_first_has_the_largest_surrogate_of_all_trees_with_as_many_nodes(seed, nodes):
    random = np.random.default_rng(seed)
    depth, k = 3, 3
    log_probs = np.log(np.sort(random.dirichlet(np.ones(k + 1), depth)[:, :k], axis=1)[:, ::-1])
    marginals = DraftMarginals(np.arange(depth * k).reshape(depth, k), log_probs)
    paths = {path: float(np.exp(sum(log_probs[d, r] for d, r in enumerate(path))))
             for length in range(1, depth + 1) for path in itertools.product(range(k), repeat=length)}
    largest = max((1.0 + sum(paths[p] for p in chosen) for chosen in itertools.combinations(paths, nodes - 1)
                   if all(len(p) == 1 or p[:-1] in chosen for p in chosen)), default=1.0)
    assert grow_best_first(marginals, 0, FixedBudget(nodes)).surrogate == pytest.approx(largest, rel=1e-12)
