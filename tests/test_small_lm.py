"""Decoding with a small language model: its trees against the model's own forwards, its cache, and losslessness."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from bastion.decoding import decode, resolve_method
from bastion.decoding.small_lm_methods import SmallLm
from bastion.errors import UserError
from bastion.records.checks import check_step
from bastion.trees.level_search import BestPaths, PathWidths
from tests.test_decoding_distribution import (
    SAMPLINGS, SHORT, distribution_over_all_draws, emitted_distribution, plain_distribution, total_variation)
from tests.test_decoding_loop import PROMPT, emitted, greedy
from tests.tiny_pair import tiny_pair
from tests.tiny_small_lm import tiny_small_lm_pair

TREES = ["small-lm:1", "small-lm:6", "small-lm:40", "small-lm:3,2,1", "small-lm:1,1,1,1,1,1", "small-lm:6,6"]
SMALL = [{}, {"small_vocab": 4}, {"small_vocab": 9}, {"window": 3}]


@torch.inference_mode()
def next_log_probs(pair, ids: list[int]) -> np.ndarray:
    """float64 [vocab] behind `ids`: the small model over all of them at once, by its library forward without a cache."""
    drafter = pair.drafter
    model = drafter.model.model
    window = getattr(model.config, "sliding_window", None) or len(ids)
    near = torch.arange(len(ids))[:, None] - torch.arange(len(ids))
    mask = torch.where((near >= 0) & (near < window), 0.0, torch.finfo(torch.float32).min)[None, None]
    logits = model(input_ids=drafter.known(ids)[None], attention_mask=mask, use_cache=False).logits[0, -1, : drafter.vocab]
    return torch.log_softmax(logits.double(), dim=-1).numpy()


def all_paths(pair, ids: list[int], levels: int) -> dict[tuple[int, ...], float]:
    """Log-probs of every path of at most so many tokens behind `ids`, by brute force."""
    found: dict[tuple[int, ...], float] = {(): 0.0}
    for depth in range(levels):
        for path in itertools.product(range(pair.drafter.vocab), repeat=depth):
            for token, log_prob in enumerate(next_log_probs(pair, [*ids, *path])):
                found[(*path, token)] = found[path] + float(log_prob)
    return found


def paths_of(step) -> list[tuple[int, ...]]:
    paths = [()]
    for node in range(1, step.nodes):
        paths.append((*paths[step.parents[node]], int(step.token_ids[node])))
    return paths


@pytest.mark.parametrize("small", SMALL, ids=str)
def test_the_tree_is_of_the_most_probable_paths_of_all(small):
    pair = tiny_small_lm_pair(**{"vocab": 5, **small})
    steps = list(decode(pair, PROMPT[:3], SmallLm(9, levels=3), max_new_tokens=5))
    ids = [*PROMPT[:3], *emitted(steps)]
    for step in steps[1:]:
        expected = all_paths(pair, ids[: step.context + 1], min(3, int(step.depths.max())))
        best = sorted((value for path, value in expected.items() if path), reverse=True)[:9]
        np.testing.assert_allclose(step.path_log_probs[1:], best, atol=1e-5)
        np.testing.assert_allclose(step.path_log_probs, [expected[path] for path in paths_of(step)], atol=1e-5)


@pytest.mark.parametrize("small", SMALL, ids=str)
def test_the_cache_is_as_if_the_text_were_read_afresh(small):
    pair = tiny_small_lm_pair(**small)
    steps = list(decode(pair, PROMPT, "small-lm:12", max_new_tokens=16))
    ids = [*PROMPT, *emitted(steps)]
    assert len({len(step.accepted) for step in steps[1:]}) > 1
    for step in steps[1:]:
        paths = paths_of(step)
        for node in (1, step.nodes - 1):
            above = paths[step.parents[node]]
            expected = next_log_probs(pair, [*ids[: step.context + 1], *above])[step.token_ids[node]]
            assert step.path_log_probs[node] - step.path_log_probs[step.parents[node]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("small", SMALL, ids=str)
def test_temperature_zero_emits_the_greedy_ids(small):
    pair = tiny_small_lm_pair(**small)
    expected = greedy(pair, 16)
    for method in TREES:
        steps = list(decode(pair, PROMPT, method, max_new_tokens=16))
        assert emitted(steps) == expected
        for step in steps:
            check_step(step)
        assert emitted(decode(pair, PROMPT, method, max_new_tokens=7, trace=False)) == expected[:7]


@pytest.mark.parametrize("left", [1, 2, 4, 7])
def test_a_context_that_fills_the_positions_ends_the_output(left):
    prompt = ([1, 2, 3, 4, 5] * 4)[: 16 - left]
    for small_positions in (16, 12):  # the small model may know fewer
        pair = tiny_small_lm_pair(positions=16, small_positions=small_positions)
        for method in ("small-lm:6", "small-lm:2,2"):
            steps = list(decode(pair, prompt, method, max_new_tokens=100))
            assert emitted(steps) == greedy(pair, left, prompt)
            assert all(step.context + step.depths.max() < small_positions or step.nodes == 1 for step in steps[1:])


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=str)
def test_chosen_children_keep_the_targets_distribution(sampling):
    pair = tiny_small_lm_pair(vocab=5)
    expected = plain_distribution(pair, *sampling)
    for method in ("small-lm:7", "small-lm:2,1")[: 1 if sampling == SAMPLINGS[0] else 2]:
        assert total_variation(emitted_distribution(pair, method, *sampling), expected) < 1e-9


@pytest.mark.parametrize(("method", "rule"), [("small-lm:2,1", "multi-round"), ("small-lm:1,1", "block"), ("small-lm:1,2", "multi-round")])
@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[2]], ids=str)
def test_drawn_children_keep_the_targets_distribution(method, rule, sampling):
    pair = tiny_small_lm_pair(vocab=3, small_vocab=2)
    expected = plain_distribution(pair, *sampling, 2, SHORT)
    assert total_variation(distribution_over_all_draws(pair, method, sampling, 2, rule), expected) < 1e-9


def test_widths_give_every_node_its_most_probable_children():
    pair = tiny_small_lm_pair()
    for step in list(decode(pair, PROMPT, "small-lm:3,2,1", max_new_tokens=12))[1:-3]:
        assert np.bincount(step.parents[1:], minlength=step.nodes).tolist() == [3, 2, 2, 2] + [1] * 6 + [0] * 6
        assert step.stop_reason == "widths"


def test_a_search_looks_only_behind_nodes_that_are_in_the_tree():
    search = BestPaths(nodes=3, levels=4, beams=2)
    assert search.parents(np.log([0.5, 0.3, 0.1, 0.05]), 0).tolist() == [0, 1]  # at most two
    assert search.parents(np.log([0.5, 0.3, 0.1, 0.4, 0.05, 0.02]), 3).tolist() == [3]
    assert search.parents(np.log([0.5, 0.3, 0.25, 0.2, 0.1]), 3).tolist() == []
    assert (search.rows, PathWidths((4, 2, 2, 1)).rows) == (6, 4 + 8 + 16)


def test_what_cannot_be_used_is_refused_in_a_sentence():
    for wrong in ("small-lm", "small-lm:0", "small-lm:x", "small-lm:2,0", "small-lm:", "small-lm:9000", "small-lm:99,99,99"):
        with pytest.raises(UserError, match="small-lm"):
            resolve_method(wrong)
    plain, small = tiny_pair(), tiny_small_lm_pair()
    for pair in (plain, replace(plain, drafter=None)):
        with pytest.raises(UserError, match="--small-lm"):
            decode(pair, PROMPT, "small-lm:8")
    with pytest.raises(UserError, match="no use for a small language model"):
        decode(small, PROMPT, "bastion")
    with pytest.raises(UserError, match="widths"):
        decode(small, PROMPT, "small-lm:8", temperature=1.0, acceptance="multi-round")
