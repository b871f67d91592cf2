"""Replaying a known answer: the same trees, steps and tau as decoding at temperature 0."""

import numpy as np
import pytest
import torch

from bastion import decode
from bastion.decoding import resolve_method
from bastion.decoding.methods import BestFirst
from bastion.decoding.replay import KnownAnswer, draft_behind_each, replay, walk
from bastion.trees import FixedBudget
from tests.tiny_pair import tiny_calibration, tiny_pair

PROMPT = [1, 2, 3, 1, 2, 4, 1, 2]
TOKENS = 24


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(vocab=12, positions=64, seed=3)


@pytest.fixture(scope="module")
def known(pair):
    answer = [token for step in decode(pair, PROMPT, "ar", max_new_tokens=TOKENS, trace=False) for token in step.emitted]
    text = [*PROMPT, *answer[:-1]]
    features = pair.target.prefill(text, pair.target.new_cache(len(text))).features
    return draft_behind_each(pair, PROMPT, answer, features, 12)


@pytest.mark.parametrize("name", ["dflash", "ddtree:6", "beam:6", "specinfer:2,2", "ngram:5", "bastion", "bastion+ngram"])
def test_replay_is_decoding_at_temperature_0(pair, known, name):
    method = resolve_method(name)
    if method.needs_calibration:
        method = method.calibrated(tiny_calibration(pair))
    steps = [step for step in decode(pair, PROMPT, method, max_new_tokens=TOKENS, trace=False) if step.kind == "decode"]
    found = replay(method, known, pair.target.position_limit)
    assert found.emitted.tolist() == [len(step.emitted) for step in steps]
    assert found.nodes.tolist() == [step.nodes for step in steps]
    assert found.surrogates == pytest.approx([step.surrogate for step in steps], rel=1e-6)


def test_a_drafter_that_is_always_right_is_accepted_whole():
    answer = [5, 6, 7, 8, 9, 10, 11]
    ids = np.array([[[answer[min(place + depth + 1, 6)]] for depth in range(3)] for place in range(6)])
    found = replay(BestFirst(FixedBudget(4)), KnownAnswer([1], answer, ids, np.zeros((6, 3, 1))))
    assert (found.emitted.tolist(), found.nodes.tolist(), found.surrogates.tolist()) == ([4, 2], [4, 4], [4.0, 4.0])


def test_one_token_has_no_step():
    known = KnownAnswer([1], [2], np.zeros((0, 3, 1), dtype=np.int64), np.zeros((0, 3, 1)))
    assert len(replay(BestFirst(FixedBudget(4)), known).emitted) == 0


def test_the_walk_ends_where_the_tree_does(pair, known):
    tree = BestFirst(FixedBudget(6)).grow(known.marginals(0, 5, 9), known.answer[0], len(PROMPT), False)
    assert walk(tree, []) == 0 and walk(tree, [99]) == 0
    for node in range(tree.nodes):
        path = tree.token_ids[tree.path(node)[1:]].tolist()
        assert walk(tree, path) == len(path)


def test_drafting_behind_one_token_gives_no_rows(pair):
    empty = draft_behind_each(pair, PROMPT, [3], torch.zeros(1, len(PROMPT), 64, dtype=torch.float64), 4)
    assert empty.ids.shape == (0, pair.drafter.depth, 4)
