"""Looked-up continuations: what is found, what it is thought to be worth, and growth over two sources at once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.drafters.lookup import LEARNING_RATE, HitOdds, NgramLookup
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


def test_longer_matches_and_the_drafters_word_raise_the_odds():
    odds = HitOdds()
    rates = [odds.rate(match, None) for match in (1, 2, 3, 6, 12, 40)]
    assert rates == sorted(rates) and 0 < rates[0] and rates[-1] == rates[-2] < 1
    believed = [odds.rate(3, drafted) for drafted in (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)]
    assert believed == sorted(believed) and believed[0] < odds.rate(3, None) < believed[-1] < 1
    assert odds.rate(3, 0.1, another=True) < odds.rate(3, 0.1)
    # the logistic model by hand: even odds of the drafter leave start + by_match * log(match)
    assert odds.rate(4, 0.5) == pytest.approx(1 / (1 + math.exp(-(odds.start + odds.by_match * math.log(4)))))


def test_the_shift_moves_towards_what_happens_in_this_text():
    odds = HitOdds()
    expected = odds.rate(3, None)
    odds.learn(expected, False)
    assert odds.shift == pytest.approx(-LEARNING_RATE * expected) and odds.rate(3, None) < expected
    for share in (0.9, 0.2):   # what comes true nine times in ten, or twice, is expected about so often in the end
        random, seen = np.random.default_rng(0), []
        for _ in range(4000):
            seen.append(odds.rate(3, None))
            odds.learn(seen[-1], random.random() < share)
        assert np.mean(seen[500:]) == pytest.approx(share, abs=0.02)


def test_only_what_the_target_answered_is_learned_from():
    lookup = NgramLookup([1, 2, 3, 4, 1, 2], 3)
    lookup.propose()
    assert [(c.tokens, c.match) for c in lookup.open] == [([3, 4, 1], 2)]
    first, second, _ = lookup.open[0].rates
    assert (first, second) == (HitOdds().rate(2, None), HitOdds().rate(3, None, deeper=True))
    lookup.observe([3, 9])       # the first token came true, the second did not, the third was not reached
    assert lookup.odds.shift == pytest.approx(LEARNING_RATE * ((1 - first) + (0 - second)))
    assert lookup.ids == [1, 2, 3, 4, 1, 2, 3, 9]


def test_nothing_is_learned_of_a_continuation_behind_one_that_came_true():
    ids = [1, 2, 3, 9, 5, 2, 3, 8, 3, 7, 2, 3]
    lookup = NgramLookup(ids, 2)
    lookup.propose()
    assert [c.tokens[0] for c in lookup.open] == [8, 9, 7]
    right, wrong = lookup.open[1].rates[0], lookup.open[0].rates[0]
    lookup.observe([9])
    assert lookup.odds.shift == pytest.approx(LEARNING_RATE * (-wrong + 1 - right))


def test_what_the_drafter_thinks_of_a_token_changes_its_rate():
    marginals = DraftMarginals(np.array([[3, 5], [6, 4]]), np.log([[0.6, 0.3], [0.7, 0.2]]))
    lookup = NgramLookup([1, 2, 3, 4, 1, 2], 3)
    graft = lookup.propose(marginals)
    odds = HitOdds()
    assert lookup.open[0].rates == pytest.approx(
        [odds.rate(2, 0.6), odds.rate(3, 0.2, deeper=True), odds.rate(4, None, deeper=True)])
    share = odds.rate(2, 0.6)
    assert graft.children[0] == {3: (1, pytest.approx(share))}
    assert graft.left[0] == pytest.approx(1 - share) and graft.unclaimed[0] == pytest.approx(0.4)
    tree = grow_grafted(marginals, graft, 2, FixedBudget(3), 1)
    # the drafter's other token gets what lookup leaves, times its share of the drafter's other 0.4
    assert np.exp(tree.path_log_probs[1:]) == pytest.approx([share, (1 - share) * 0.3 / 0.4])


def test_shares_in_the_trie():
    graft = Graft()
    graft.add([5, 6], [0.6, 0.5])
    graft.add([5, 7], [0.9, 0.4])      # the first token stands already
    graft.add([8], [0.5])
    assert graft.children[0] == {5: (1, 0.6), 8: (4, pytest.approx(0.2))}
    assert graft.children[1] == {6: (2, 0.5), 7: (3, pytest.approx(0.2))}
    assert graft.left[0] == pytest.approx(0.2) and graft.left[1] == pytest.approx(0.3) and graft.unclaimed == [1.0] * 5


def make_marginals(random, depth=3, k=3, vocab=6):
    probabilities = np.sort(random.dirichlet(np.ones(k + 1), depth)[:, :k], axis=1)[:, ::-1]
    ids = np.stack([random.permutation(vocab)[:k] for _ in range(depth)])
    return DraftMarginals(ids, np.log(probabilities))


def make_graft(random, marginals=None, vocab=6):
    """Continuations of random tokens and rates, laid in with the drafter's probabilities of them."""
    graft = Graft()
    for _ in range(random.integers(0, 4)):
        node = 0
        for depth in range(random.integers(1, 6)):
            token = int(random.integers(0, vocab))
            node = graft.put(node, token, float(random.uniform(0.05, 0.95)), drafted_at(marginals, depth).get(token, 0.0))
    return graft


def drafted_at(marginals, depth):
    """{token: the drafter's probability} of a depth."""
    if marginals is None or depth >= marginals.depth:
        return {}
    return dict(zip(marginals.token_ids[depth].tolist(), np.exp(marginals.log_probs[depth]).tolist()))


def every_path(marginals, graft, deepest, vocab=6):
    """{path: probability} by the definition: lookup's tokens have theirs, and the drafter's others share the rest."""
    paths = {(): (1.0, 0)}
    level = [()]
    for depth in range(deepest):
        below = []
        for path in level:
            probability, node = paths[path]
            known = graft.children[node] if node is not None else {}
            drafted = drafted_at(marginals, depth)
            rest = (1.0 - sum(p for _, p in known.values())) / (1.0 - sum(drafted.get(token, 0.0) for token in known))
            for token in range(vocab):
                share = known[token][1] if token in known else rest * drafted.get(token, 0.0)
                if share > 0:
                    paths[path + (token,)] = probability * share, known[token][0] if token in known else None
                    below.append(path + (token,))
        level = below
    return {path: probability for path, (probability, _) in paths.items()}


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 5))
def test_the_most_probable_paths_of_both_sources_are_taken(seed, nodes, deepest):
    random = np.random.default_rng(seed)
    marginals = make_marginals(random)
    graft = make_graft(random, marginals)
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
        marginals = make_marginals(random)
        graft = make_graft(random, marginals)
        paths = every_path(marginals, graft, 3)
        for parent in [path for path in paths if len(path) < 3]:
            assert sum(paths[p] for p in paths if p[:-1] == parent and len(p) == len(parent) + 1) <= paths[parent] * (1 + 1e-12)
