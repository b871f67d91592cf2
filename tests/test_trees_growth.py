"""Best-first growth against enumeration, and what every tree must satisfy."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bastion.errors import UserError
from bastion.trees import (
    AdaptiveBudget,
    DraftMarginals,
    DraftTree,
    FixedBudget,
    grow_beam,
    grow_best_first,
    grow_chain,
)

ROOT = 9


@st.composite
def marginals(draw, max_depth=4, max_k=5):
    """Small marginals on a coarse grid, so that ties are common; some tokens are ruled out."""
    depth, k = draw(st.integers(1, max_depth)), draw(st.integers(1, max_k))
    grid = st.sampled_from([0.0, -0.25, -0.5, -1.0, -1.5, -2.0, -3.0, -np.inf])
    rows = draw(st.lists(st.lists(grid, min_size=k, max_size=k), min_size=depth, max_size=depth))
    log_probs = -np.sort(-np.array(rows), axis=1)
    token_ids = np.array([np.random.default_rng(d).permutation(50)[:k] for d in range(depth)])
    return DraftMarginals(token_ids, log_probs.astype(draw(st.sampled_from([np.float32, np.float64]))))


def all_paths(given_marginals: DraftMarginals) -> dict[tuple[int, ...], float]:
    """Every drafted path of finite log-prob, by its ranks."""
    table = given_marginals.log_probs.astype(np.float64)
    paths = {}
    for depth in range(1, given_marginals.depth + 1):
        for ranks in product(range(given_marginals.k), repeat=depth):
            total = 0.0
            for row, rank in zip(table, ranks, strict=False):
                total += row[rank]
            if np.isfinite(total):
                paths[ranks] = total
    return paths


def ranks_of(tree: DraftTree) -> list[tuple[int, ...]]:
    """Each node's ranks from the root, out of the growth log."""
    log, ranks = tree.growth, [()]
    for parent, rank in zip(log.parents, log.ranks, strict=True):
        ranks.append(ranks[parent] + (int(rank),))
    return ranks[1:]


def check_tree(tree: DraftTree, source: DraftMarginals) -> None:
    assert tree.parents[0] == -1 and tree.depths[0] == 0 and tree.path_log_probs[0] == 0
    assert tree.token_ids[0] == ROOT
    assert len(tree) == tree.nodes == len(tree.parents) == len(tree.depths) == len(tree.path_log_probs)
    assert all(array.dtype == np.int64 for array in (tree.token_ids, tree.parents, tree.depths))
    seen = set()
    for node in range(1, tree.nodes):
        parent, depth = tree.parents[node], tree.depths[node]
        assert 0 <= parent < node
        assert depth == tree.depths[parent] + 1
        rank = source.token_ids[depth - 1].tolist().index(tree.token_ids[node])
        marginal = float(source.log_probs[depth - 1, rank])
        assert tree.path_log_probs[node] == pytest.approx(tree.path_log_probs[parent] + marginal, abs=1e-12)
        seen.add((parent, tree.token_ids[node]))
    assert len(seen) == tree.nodes - 1, "two children of a node carry the same token"
    assert tree.surrogate == pytest.approx(np.exp(tree.path_log_probs).sum())


@given(marginals(max_depth=2, max_k=3), st.integers(1, 5))
def test_no_tree_of_the_same_size_has_a_greater_surrogate(source, nodes):
    tree = grow_best_first(source, ROOT, FixedBudget(nodes))
    paths = all_paths(source)
    size = min(nodes - 1, len(paths))
    assert tree.nodes == size + 1
    best = max(
        sum(np.exp(paths[path]) for path in chosen)
        for chosen in combinations(paths, size)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    )
    assert tree.surrogate == pytest.approx(1 + best, rel=1e-12)


@given(marginals(), st.integers(1, 60))
def test_every_best_first_tree_is_well_formed(source, nodes):
    tree = grow_best_first(source, ROOT, FixedBudget(nodes))
    check_tree(tree, source)
    exhausted = len(all_paths(source)) < nodes - 1
    assert tree.stop_reason == ("exhausted" if exhausted else "fixed budget")
    assert (np.diff(tree.path_log_probs) <= 0).all(), "a later node is more probable"


@given(marginals(max_depth=3, max_k=4))
def test_ties_by_ranks_is_the_sorted_enumeration(source):
    tree = grow_best_first(source, ROOT, FixedBudget(1000), ties="ranks")
    paths = all_paths(source)
    assert ranks_of(tree) == sorted(paths, key=lambda ranks: (-paths[ranks], ranks))


@given(marginals(max_depth=3, max_k=4))
def test_ties_by_creation_order_follow_a_plain_search(source):
    """The rule as DESIGN.md words it, over a list of candidates searched from end to end."""
    paths = all_paths(source)
    waiting = [(0,)] if (0,) in paths else []
    order = []
    while waiting:
        best = max(waiting, key=lambda ranks: (paths[ranks], -waiting.index(ranks)))
        waiting.remove(best)
        order.append(best)
        # A removal keeps the order of the rest, so a place in the list says who came first.
        for new in (best + (0,), best[:-1] + (best[-1] + 1,)):
            if new in paths:
                waiting.append(new)
    assert ranks_of(grow_best_first(source, ROOT, FixedBudget(1000))) == order


@st.composite
def adaptive(draw):
    steps = np.array(draw(st.lists(st.sampled_from([0.0, 0.1, 0.5, 2.0]), min_size=60, max_size=60)))
    table = 1.0 + np.cumsum(steps)
    low = draw(st.integers(1, 6))
    return AdaptiveBudget(
        lambda nodes: table[np.minimum(nodes, 60) - 1],
        draw(st.sampled_from([0.0, 0.5, 3.0])),
        draw(st.sampled_from([0.0, 0.25])),
        min_nodes=low,
        max_nodes=low + draw(st.integers(0, 30)),
        bucket=draw(st.sampled_from([1, 2, 3, 7, "doubling"])),
    )


@settings(max_examples=200)
@given(marginals(), adaptive(), st.booleans())
def test_the_growth_log_explains_the_tree(source, budget, trace):
    tree = grow_best_first(source, ROOT, budget, trace=trace)
    check_tree(tree, source)
    log, fixed = tree.growth, budget.draft_seconds + budget.other_seconds
    # The first pops are the tree, in order.
    bought = int(log.bought.sum())
    assert bought == tree.nodes - 1 and log.bought[:bought].all()
    for logged, held in (
        (log.token_ids, tree.token_ids),
        (log.parents, tree.parents),
        (log.depths, tree.depths),
        (log.path_log_probs, tree.path_log_probs),
    ):
        np.testing.assert_array_equal(logged[:bought], held[1:])
    # Both sides of the rule, as if every earlier pop had been bought.
    sizes = np.arange(1, len(log) + 1)
    surrogates = 1 + np.concatenate(([0], np.cumsum(np.exp(log.path_log_probs))))[:-1]
    now, then = budget.seconds(sizes), budget.seconds(sizes + 1)
    np.testing.assert_allclose(log.gains, np.exp(log.path_log_probs) * (fixed + now), rtol=1e-12)
    np.testing.assert_allclose(log.prices, surrogates * (then - now), rtol=1e-12, atol=1e-15)
    # Where it stopped and why.
    keeps = (log.gains > log.prices) | (sizes < budget.min_nodes)
    passed = int((log.bought | log.dropped).sum())
    assert keeps[:passed].all() and (log.bought | log.dropped)[:passed].all()
    total = len(all_paths(source))
    if tree.stop_reason == "price":
        assert not keeps[passed]
    elif tree.stop_reason == "max nodes":
        assert passed + 1 == budget.max_nodes
    else:
        assert tree.stop_reason == "exhausted" and passed == total
    # Rounding drops the fewest nodes that lead to a permitted size.
    assert tree.nodes == largest_permitted(passed + 1, budget.min_nodes, budget.bucket)
    failed = int(tree.stop_reason == "price")
    assert len(log) == (min(passed + failed + 64, total) if trace else passed + failed)


def largest_permitted(nodes: int, low: int, bucket) -> int:
    if nodes <= low:
        return nodes
    sizes = (low * 2**i if bucket == "doubling" else low + i * bucket for i in range(200))
    return max(size for size in sizes if size <= nodes)


@given(marginals(), st.integers(1, 40))
def test_tracing_does_not_change_the_tree(source, nodes):
    plain = grow_best_first(source, ROOT, FixedBudget(nodes))
    traced = grow_best_first(source, ROOT, FixedBudget(nodes), trace=True)
    np.testing.assert_array_equal(plain.token_ids, traced.token_ids)
    np.testing.assert_array_equal(plain.parents, traced.parents)
    log = traced.growth
    assert np.isnan(log.gains).all() and np.isnan(log.prices).all()
    assert log.bought.sum() == plain.nodes - 1 and not log.dropped.any()
    assert len(log) == min(nodes - 1 + 64, len(all_paths(source)))
    assert traced.growth is log, "a second reading must not pop again"


@given(marginals(), st.integers(1, 60))
def test_beam_keeps_the_best_of_each_level(source, nodes):
    tree = grow_beam(source, ROOT, FixedBudget(nodes))
    check_tree(tree, source)
    assert tree.nodes <= nodes
    assert (tree.nodes == nodes) == (tree.stop_reason == "fixed budget")
    assert (np.diff(tree.depths) >= 0).all()
    assert tree.surrogate <= grow_best_first(source, ROOT, FixedBudget(tree.nodes)).surrogate + 1e-12
    for depth in range(1, int(tree.depths.max()) + 1):
        above = tree.path_log_probs[tree.depths == depth - 1]
        level = tree.path_log_probs[tree.depths == depth]
        children = (above[:, None] + source.log_probs[depth - 1].astype(np.float64)).ravel()
        np.testing.assert_allclose(level, -np.sort(-children)[: len(level)], rtol=1e-12)


def test_beam_spreads_its_nodes_over_the_depths():
    row = np.log(np.array([0.5, 0.3, 0.2]))
    source = DraftMarginals(np.tile([1, 2, 3], (3, 1)), np.tile(row, (3, 1)))
    assert np.bincount(grow_beam(source, ROOT, FixedBudget(8)).depths).tolist() == [1, 3, 2, 2]
    # A level with fewer candidates than its share leaves the rest to those below.
    assert np.bincount(grow_beam(source, ROOT, FixedBudget(16)).depths).tolist() == [1, 3, 6, 6]
    assert np.bincount(grow_beam(source, ROOT, FixedBudget(3)).depths).tolist() == [1, 1, 1]


@given(marginals())
def test_the_chain_is_the_greedy_path(source):
    tree = grow_chain(source, ROOT)
    check_tree(tree, source)
    best = source.log_probs[:, 0].astype(np.float64)
    length = int(np.isfinite(best).argmin()) if not np.isfinite(best).all() else source.depth
    assert tree.token_ids[1:].tolist() == source.token_ids[:length, 0].tolist()
    assert tree.parents.tolist() == list(range(-1, length))
    assert tree.growth is None and tree.stop_reason == "chain"


@given(marginals(), st.integers(1, 40))
def test_masks_paths_and_children_agree(source, nodes):
    tree = grow_best_first(source, ROOT, FixedBudget(nodes))
    mask = tree.ancestor_mask()
    assert mask.shape == (tree.nodes, tree.nodes) and mask.dtype == bool
    for node in range(tree.nodes):
        path = tree.path(node)
        assert path[0] == 0 and path[-1] == node and len(path) == tree.depths[node] + 1
        assert np.flatnonzero(mask[node]).tolist() == sorted(path.tolist())
        for child in tree.children(node):
            assert tree.parents[child] == node
    assert sum(len(tree.children(node)) for node in range(tree.nodes)) == tree.nodes - 1


def test_a_drafter_with_nothing_to_say_leaves_the_root():
    nothing = DraftMarginals(np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0)))
    for tree in (
        grow_best_first(nothing, ROOT, FixedBudget(5), trace=True),
        grow_beam(nothing, ROOT, FixedBudget(5)),
        grow_chain(nothing, ROOT),
    ):
        assert tree.token_ids.tolist() == [ROOT] and tree.surrogate == 1.0
        assert tree.ancestor_mask().tolist() == [[True]] and tree.path(0).tolist() == [0]
    assert len(grow_best_first(nothing, ROOT, FixedBudget(5), trace=True).growth) == 0


@pytest.mark.parametrize(
    ("token_ids", "log_probs"),
    [
        ([[1, 2]], [[-1.0, -0.5]]),
        ([[1, 2]], [[-1.0, np.nan]]),
        ([[1, 2]], [[np.nan, -1.0]]),
        ([[1]], [[np.nan]]),
        ([[1, 2]], [[0.7, 0.3]]),
        ([[1, 2, 3]], [[-1.0, -2.0]]),
        ([1, 2], [-1.0, -2.0]),
    ],
)
def test_marginals_that_would_give_a_wrong_tree_are_refused(token_ids, log_probs):
    with pytest.raises(UserError):
        DraftMarginals(np.array(token_ids), np.array(log_probs))
