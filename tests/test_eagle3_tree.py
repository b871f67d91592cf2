"""The dynamic tree against a plain search over Python lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.decoding import Eagle3
from bastion.trees.best_first import PAST_THE_STOP
from bastion.trees.eagle3_tree import beam_candidates, grow_reranked

VOCAB, ROOT = 9, 99


def next_log_probs(seed: int, path: tuple[int, ...]) -> np.ndarray:
    """float32 [VOCAB]: a distribution that depends on the whole path, as a drafter's does."""
    random = np.random.default_rng([seed, *path])
    scores = random.normal(0, 2, VOCAB)
    return (scores - np.log(np.exp(scores).sum())).astype(np.float32)


def search(seed: int, levels: int, k: int):
    """What a drafter's session hands over, from `next_log_probs`."""
    row = next_log_probs(seed, ())
    best = np.argsort(-row, kind="stable")[:k]
    first = best, row[best]
    paths, sums = [(int(token),) for token in best], row[best]
    drafted = []
    for _ in range(levels - 1):
        rows = np.array([next_log_probs(seed, path) for path in paths])
        tokens = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        scores = sums[:, None] + np.take_along_axis(rows, tokens, axis=1)
        chosen = np.argsort(-scores.ravel(), kind="stable")[:k]
        drafted.append((tokens, scores, chosen))
        paths = [(*paths[place // k], int(tokens.ravel()[place])) for place in chosen]
        sums = scores.ravel()[chosen]
    stack = lambda place, shape: np.array([level[place] for level in drafted]).reshape(shape)  # noqa: E731
    return beam_candidates(*first, stack(0, (-1, k, k)), stack(1, (-1, k, k)), stack(2, (-1, k)).astype(int))


def competitors(seed: int, levels: int, k: int) -> dict[tuple[int, ...], float]:
    """Every path that competes, by a beam search written out."""
    beams, found = {(): np.float32(0.0)}, {}
    for _ in range(levels):
        children = {}
        for path, total in beams.items():
            row = next_log_probs(seed, path)
            for token in sorted(range(VOCAB), key=lambda t: -row[t])[:k]:
                children[(*path, token)] = total + row[token]
        found |= children
        beams = dict(sorted(children.items(), key=lambda item: -item[1])[:k])
    return found


def paths_of(tree) -> list[tuple[int, ...]]:
    return [tuple(tree.token_ids[tree.path(node)[1:]].tolist()) for node in range(1, tree.nodes)]


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 5), st.integers(1, 40))
def test_the_best_of_all_that_competed_are_kept(seed, levels, k, nodes):
    candidates, wanted = search(seed, levels, k), competitors(seed, levels, k)
    assert len(candidates) == len(wanted) == k + (levels - 1) * k * k
    tree = grow_reranked(candidates, ROOT, nodes)
    best = sorted(wanted, key=lambda path: -wanted[path])[:nodes]
    assert set(paths_of(tree)) == set(best) and tree.token_ids[0] == ROOT
    assert tree.path_log_probs[1:] == pytest.approx([wanted[path] for path in paths_of(tree)], rel=1e-6)
    assert (tree.parents[1:] < np.arange(1, tree.nodes)).all()
    assert (tree.depths[1:] == tree.depths[tree.parents[1:]] + 1).all()
    assert (np.diff(tree.path_log_probs) <= 0).all()
    smaller = grow_reranked(candidates, ROOT, max(1, nodes // 2))
    assert smaller.parents.tolist() == tree.parents[: smaller.nodes].tolist()
    assert tree.stop_reason == ("fixed budget" if tree.nodes == nodes + 1 else "exhausted")


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6), st.integers(1, 12))
def test_fewer_beams_and_levels_than_nodes_give_the_same_tree(seed, levels, k, nodes):
    whole = grow_reranked(search(seed, levels, k), ROOT, nodes)
    spared = grow_reranked(search(seed, *Eagle3(nodes, levels, k).search(deepest=99)), ROOT, nodes)
    assert spared.token_ids.tolist() == whole.token_ids.tolist()
    assert spared.parents.tolist() == whole.parents.tolist()


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_the_log_holds_what_was_taken_and_the_best_of_the_rest(seed, levels, k, nodes, trace):
    candidates = search(seed, levels, k)
    tree = grow_reranked(candidates, ROOT, nodes, trace)
    log, taken = tree.growth, tree.nodes - 1
    assert log.bought.sum() == taken and log.bought[:taken].all() and not log.dropped.any()
    assert log.token_ids[:taken].tolist() == tree.token_ids[1:].tolist() and log.parents[:taken].tolist() == tree.parents[1:].tolist()
    assert len(log) == (min(len(candidates), taken + PAST_THE_STOP) if trace else taken)
    assert (log.parents <= np.arange(len(log))).all()
    assert (np.diff(log.path_log_probs) <= 0).all()
    depths = np.concatenate(([0], log.depths))
    assert (log.depths == depths[log.parents] + 1).all() and (log.ranks < k).all()
    assert np.isnan(log.gains).all() and np.isnan(log.prices).all()


def test_a_certain_child_never_comes_without_its_parent():
    """A child as probable as its parent ties with it; a tie goes to the one drafted first."""
    candidates = beam_candidates(np.array([1, 2]), np.log(np.array([0.5, 0.5])), np.array([[[3, 4], [3, 4]]]),
                                 np.log(np.array([[[0.5, 1e-9], [0.5, 1e-9]]])), np.array([[0, 2]]))
    for nodes, tokens in ((1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 3])):
        tree = grow_reranked(candidates, ROOT, nodes)
        assert tree.token_ids[1:].tolist() == tokens


def test_what_may_not_be_drafted_is_left_out():
    candidates = beam_candidates(np.array([1, 2]), np.array([-0.1, -np.inf]), np.zeros((0, 2, 2), int), np.zeros((0, 2, 2)),
                                 np.zeros((0, 2), int))
    tree = grow_reranked(candidates, ROOT, 5, trace=True)
    assert tree.token_ids.tolist() == [ROOT, 1] and tree.stop_reason == "exhausted" and len(tree.growth) == 1
