"""Looked-up continuations: what is found, what it is thought to be worth, and growth over two sources at once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.drafters.lookup import HitRates, NgramLookup
from bastion.trees import AdaptiveBudget, DraftMarginals, FixedBudget, Graft, grow_best_first, grow_grafted



def found(ids, longest=4):
    lookup = NgramLookup(ids, longest)
    lookup.propose()
    return [(c.tokens, c.match) for c in lookup.open]


def test_the_longest_match_comes_first_then_the_latest_each_with_another_token():
    #      0  1  2  3  4  5  6  7  8  9 10 11
    ids = [1, 2, 3, 9, 5, 2, 3, 8, 3, 7, 2, 3]
    assert found(ids) == [([8, 3, 7, 2], 2), ([9, 5, 2, 3], 2), ([7, 2, 3, 7], 1)]
    assert found([1, 2, 3]) == [] and found([]) == []


def test_a_text_that_repeats_itself_is_continued_past_its_end():
    assert found([4, 5, 6, 4, 5, 6], 7)[0] == ([4, 5, 6, 4, 5, 6, 4], 3)
    assert found([7, 7], 3) == [([7, 7, 7], 1)]


def test_rates_move_from_the_first_guess_to_what_happens():
    rates = HitRates()
    before = rates.rate(0, 3)
    assert 0 < rates.rate(0, 1) < rates.rate(0, 2) < before < rates.rate(0, 6) < 1 and rates.rate(1, 3) < before
    for _ in range(600):
        rates.count(0, 3, False)
    assert rates.rate(0, 3) == pytest.approx(before * 6 / 606)
    for _ in range(600):
        rates.count(0, 40, True)
    assert rates.rate(0, 12) == rates.rate(0, 99) > 0.99


def test_only_what_the_target_answered_is_learned_from():
    lookup = NgramLookup([1, 2, 3, 4, 1, 2], 3)
    lookup.propose()
    assert [(c.tokens, c.match) for c in lookup.open] == [([3, 4, 1], 2)]
    lookup.observe([3, 9])       # first token came true behind a match of 2, the second not behind one of 3
    assert (lookup.rates.trials[0][2], lookup.rates.hits[0][2]) == (1, 1)
    assert (lookup.rates.trials[0][3], lookup.rates.hits[0][3]) == (1, 0)
    assert lookup.rates.trials[0][4] == 0
    assert lookup.ids == [1, 2, 3, 4, 1, 2, 3, 9]


def test_shares_in_the_trie():
    graft = Graft()
    graft.add([5, 6], [0.6, 0.5])
    graft.add([5, 7], [0.9, 0.4])      # the first token stands already
    graft.add([8], [0.5])
    assert graft.children[0] == {5: (1, 0.6), 8: (4, pytest.approx(0.2))}
    assert graft.children[1] == {6: (2, 0.5), 7: (3, pytest.approx(0.2))}


def make_marginals(random, depth=3, k=3, vocab=6):
    probabilities = np.sort(random.dirichlet(np.ones(k + 1), depth)[:, :k], axis=1)[:, ::-1]
    ids = np.stack([random.permutation(vocab)[:k] for _ in range(depth)])
    return DraftMarginals(ids, np.log(probabilities))


def make_graft(random, vocab=6):
    graft = Graft()
    for _ in range(random.integers(0, 4)):
        length = int(random.integers(1, 6))
        graft.add(random.integers(0, vocab, length).tolist(), random.uniform(0.05, 0.95, length).tolist())
    return graft


def every_path(marginals, graft, deepest, vocab=6):
    """{path: probability} by the definition: lookup's share first, the drafter's with what is left."""
    paths = {(): (1.0, 0)}
    level = [()]
    for depth in range(deepest):
        below = []
        for path in level:
            probability, node = paths[path]
            known = graft.children[node] if node is not None else {}
            rest = 1.0 - sum(p for _, p in known.values())
            drafted = dict(zip(marginals.token_ids[depth].tolist(), np.exp(marginals.log_probs[depth]))) if depth < marginals.depth else {}
            for token in range(vocab):
                share = (known[token][1] if token in known else 0.0) + rest * drafted.get(token, 0.0)
                if share > 0:
                    paths[path + (token,)] = probability * share, known[token][0] if token in known else None
                    below.append(path + (token,))
        level = below
    return {path: probability for path, (probability, _) in paths.items()}


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 5))
def test_the_most_probable_paths_of_both_sources_are_taken(seed, nodes, deepest):
    random = np.random.default_rng(seed)
    marginals, graft = make_marginals(random), make_graft(random)
    tree = grow_grafted(marginals, graft, 99, FixedBudget(nodes), deepest, trace=True)
    paths = every_path(marginals, graft, deepest)
    wanted = sorted(paths.values(), reverse=True)[:nodes]
    assert np.exp(tree.path_log_probs) == pytest.approx(wanted, rel=1e-9)
    assert tree.depths.max(initial=0) <= deepest and tree.surrogate == pytest.approx(sum(wanted))
    for node in range(1, tree.nodes):
        path = tuple(tree.token_ids[tree.path(node)[1:]].tolist())
        assert math.exp(tree.path_log_probs[node]) == pytest.approx(paths[path], rel=1e-9)
    spelt = [tuple(tree.token_ids[tree.path(node)].tolist()) for node in range(tree.nodes)]
    assert len(set(spelt)) == tree.nodes
    growth = tree.growth
    assert growth.bought.sum() == tree.nodes - 1 and (growth.path_log_probs[: tree.nodes - 1] == tree.path_log_probs[1:]).all()
    assert np.exp(growth.path_log_probs) == pytest.approx(sorted(paths.values(), reverse=True)[1:len(growth) + 1], rel=1e-9)
    assert (growth.parents <= np.arange(len(growth))).all()


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_without_continuations_it_is_best_first_growth(seed, nodes):
    random = np.random.default_rng(seed)
    marginals = make_marginals(random, depth=4, k=4, vocab=9)
    for budget in (FixedBudget(nodes), AdaptiveBudget(lambda n: 0.05 + 0.004 * n, 0.02, 0.001, max_nodes=30)):
        plain = grow_best_first(marginals, 99, budget, trace=True)
        same = grow_grafted(marginals, Graft(), 99, budget, 4, trace=True)
        assert same.stop_reason == plain.stop_reason
        for name in ("token_ids", "parents", "depths"):
            assert getattr(same, name).tolist() == getattr(plain, name).tolist(), name
        assert same.path_log_probs == pytest.approx(plain.path_log_probs, rel=1e-12)
        for name in ("token_ids", "parents", "depths", "ranks", "bought", "dropped"):
            assert getattr(same.growth, name).tolist() == getattr(plain.growth, name).tolist(), name
        assert same.growth.gains == pytest.approx(plain.growth.gains, rel=1e-9, nan_ok=True)
        assert same.growth.prices == pytest.approx(plain.growth.prices, rel=1e-9, nan_ok=True)


def test_a_certain_continuation_is_followed_past_the_drafters_depth():
    graft = Graft()
    graft.add(list(range(10, 22)), [0.99] * 12)
    marginals = DraftMarginals(np.array([[1, 2], [3, 4]]), np.log([[0.4, 0.2], [0.4, 0.2]]))
    tree = grow_grafted(marginals, graft, 0, FixedBudget(13), 99)
    assert tree.token_ids.tolist() == [0, *range(10, 22)] and tree.depths.tolist() == list(range(13))


def test_no_token_has_more_than_the_whole_probability():
    random = np.random.default_rng(3)
    for _ in range(50):
        marginals, graft = make_marginals(random), make_graft(random)
        paths = every_path(marginals, graft, 3)
        for parent in [path for path in paths if len(path) < 3]:
            assert sum(paths[p] for p in paths if p[:-1] == parent and len(p) == len(parent) + 1) <= paths[parent] * (1 + 1e-12)
