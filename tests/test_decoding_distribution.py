"""Above temperature 0 the emitted sequence has exactly the target's distribution, by enumeration.

Decoding takes its randomness from one place, `draws`. The test answers every draw in every possible
way, multiplies the probabilities, and so computes the exact distribution of the first tokens.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from bastion.decoding import decode, resolve_method
from bastion.decoding.acceptance import walk
from bastion.decoding.sampling import Sampling, SeededDraws
from tests.tiny_pair import tiny_calibration, tiny_pair

TOKENS = 3
PROMPT = [1, 4, 2, 0, 3]
SHORT = [1, 0, 2]
SAMPLINGS = [(1.0, 1.0, 0), (0.7, 0.8, 0), (1.4, 1.0, 3), (0.9, 0.85, 4)]
METHODS = ["ar", "dflash", "ddtree:2", "ddtree:7", "bastion", "beam:4", "specinfer:2,1", "sequoia:4", "ngram:3", "bastion+ngram"]

Distribution = dict[tuple[int, ...], float]


class Script:
    """Draws that follow given answers and take the first possible one after them."""

    def __init__(self, answers: list[int]):
        self.answers = answers
        self.asked: list[tuple[torch.Tensor, int]] = []

    def __call__(self, probabilities: torch.Tensor) -> int:
        place = len(self.asked)
        if place < len(self.answers):
            answer = self.answers[place]
        else:
            answer = int(probabilities.nonzero()[0])
        self.asked.append((probabilities, answer))
        return answer


def emitted_distribution(pair, method, temperature, top_p, top_k) -> Distribution:
    """Run decode once for every sequence of answers that the first `TOKENS` draws can have.

    Later draws belong to tokens that are cut off; were they not, the distribution would come out wrong.
    """
    found: Distribution = defaultdict(float)
    waiting: list[list[int]] = [[]]
    while waiting:
        script = Script(waiting.pop())
        known = len(script.answers)
        steps = decode(pair, PROMPT, method, temperature, top_p, top_k, TOKENS, trace=False, draws=script)
        emitted = tuple(token for step in steps for token in step.emitted)
        probability = 1.0
        for place, (probabilities, answer) in enumerate(script.asked):
            if place >= TOKENS:
                break
            if place >= known:  # a new draw: the answers not taken here wait for their turn
                taken = [asked[1] for asked in script.asked[:place]]
                others = probabilities.nonzero()[:, 0].tolist()
                waiting += [[*taken, other] for other in others if other != answer]
            probability *= float(probabilities[answer] / probabilities.sum())
        found[emitted] += probability
    return found


def distribution_over_all_draws(pair, method, sampling, tokens, acceptance) -> Distribution:
    """As above for rules that draw more often than once a token: every draw of a decode is answered in every way."""
    found: Distribution = defaultdict(float)
    waiting: list[list[int]] = [[]]
    while waiting:
        script = Script(waiting.pop())
        known = len(script.answers)
        steps = decode(pair, SHORT, method, *sampling, tokens, trace=False, draws=script, acceptance=acceptance)
        emitted = tuple(token for step in steps for token in step.emitted)
        probability = 1.0
        for place, (probabilities, answer) in enumerate(script.asked):
            if place >= known:
                taken = [asked[1] for asked in script.asked[:place]]
                waiting += [[*taken, other] for other in probabilities.nonzero()[:, 0].tolist() if other != answer]
            probability *= float(probabilities[answer] / probabilities.sum())
        found[emitted] += probability
    return found


def plain_distribution(pair, temperature, top_p, top_k, tokens=TOKENS, prompt=PROMPT) -> Distribution:
    """The library's own model, without cache, and the library's own warpers."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)] if temperature != 1.0 else [])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    model = pair.target.model
    found: Distribution = {(): 1.0}
    for _ in range(tokens):
        longer: Distribution = {}
        prefixes = torch.tensor([[*prompt, *prefix] for prefix in found])
        n = prefixes.shape[1]
        mask = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        with torch.inference_mode():
            logits = model(prefixes, attention_mask=mask, use_cache=False).logits[:, -1]
        probabilities = torch.softmax(warpers(prefixes, logits), dim=-1).tolist()
        for (prefix, mass), row in zip(found.items(), probabilities, strict=True):
            for token, probability in enumerate(row):
                if probability > 0:
                    longer[*prefix, token] = mass * probability
        found = longer
    return found


def total_variation(left: Distribution, right: Distribution) -> float:
    return 0.5 * sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in {*left, *right})


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(vocab=5, block=3)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: f"T{s[0]}-p{s[1]}-k{s[2]}")
def test_every_method_has_the_targets_distribution(pair, sampling):
    expected = plain_distribution(pair, *sampling)
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-12)
    for name in METHODS:
        method = resolve_method(name)
        if name.startswith("bastion"):
            method = replace(method, calibration=tiny_calibration(pair), max_nodes_bound=6)
        if name.startswith("sequoia"):
            method = method.with_rates((0.5, 0.2, 0.1), pair.drafter.depth)
        found = emitted_distribution(pair, method, *sampling)
        assert total_variation(found, expected) < 1e-9, name


@pytest.mark.parametrize(("name", "acceptance"), [("dflash", "multi-round"), ("dflash", "block"), ("specinfer:2", "multi-round")])
def test_drawn_children_keep_the_targets_distribution_too(name, acceptance):
    small = tiny_pair(vocab=4, block=3)
    for sampling in ((1.0, 1.0, 0), (0.8, 1.0, 3)):
        expected = plain_distribution(small, *sampling, tokens=2, prompt=SHORT)
        found = distribution_over_all_draws(small, name, sampling, 2, acceptance)
        assert total_variation(found, expected) < 1e-9, sampling


def test_the_published_rule_is_there_by_name_and_goes_wrong():
    small = tiny_pair(vocab=4, block=3)
    sampling = (1.0, 1.0, 0)
    expected = plain_distribution(small, *sampling, tokens=2, prompt=SHORT)
    found = distribution_over_all_draws(small, "ddtree:6", sampling, 2, "reference-argmax")
    assert total_variation(found, expected) > 0.05
    greedy = [list(decode(small, SHORT, "ddtree:6", max_new_tokens=9, acceptance=rule)) for rule in ("walk", "reference-argmax", "block")]
    assert len({tuple(t for step in steps for t in step.emitted) for steps in greedy}) == 1


def test_walking_the_argmax_would_be_found_out(pair):
    """The published reference walks the argmax and samples the bonus only; this test can tell."""
    sampling = (1.0, 1.0, 0)
    expected = plain_distribution(pair, *sampling)

    class ArgmaxWalk(Script):
        def __call__(self, probabilities):
            return int(probabilities.argmax()) if len(self.asked) % 2 else super().__call__(probabilities)

    wrong: Distribution = defaultdict(float)
    for answers in itertools.product(range(5), repeat=2):
        script = ArgmaxWalk(list(answers))
        steps = decode(pair, PROMPT, "ddtree:7", *sampling, TOKENS, trace=False, draws=script)
        wrong[tuple(token for step in steps for token in step.emitted)] += 1 / 25
    assert total_variation(wrong, expected) > 0.1


def test_the_walk_asks_once_per_node_and_ends_on_a_token_no_child_carries():
    from bastion.trees import DraftMarginals, FixedBudget, grow_best_first
    import numpy as np

    marginals = DraftMarginals(np.array([[7, 8], [9, 7]]), np.log([[0.6, 0.4], [0.7, 0.3]]))
    tree = grow_best_first(marginals, 5, FixedBudget(5))
    asked = []

    def choose(node: int) -> int:
        asked.append(node)
        return [7, 9, 3][len(asked) - 1]

    path, bonus = walk(tree, choose)
    assert tree.token_ids[path].tolist() == [5, 7, 9] and bonus == 3
    assert asked == path.tolist()


def test_seeded_draws_follow_the_probabilities_and_repeat():
    probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)
    draws = SeededDraws(3)
    first = [draws(probabilities) for _ in range(4000)]
    again = SeededDraws(3)
    assert first == [again(probabilities) for _ in range(4000)]
    counts = torch.bincount(torch.tensor(first), minlength=4).double()
    assert counts[1] == 0
    expected = probabilities * 4000
    chi_square = float(((counts - expected) ** 2 / expected)[[0, 2, 3]].sum())
    assert chi_square < 13.8  # 2 degrees of freedom, one in a thousand; the seed is fixed


def test_one_seed_spells_one_text_whatever_the_method(pair):
    texts = set()
    for name in ("ar", "dflash", "ddtree:7"):
        steps = decode(pair, PROMPT, name, 1.0, max_new_tokens=24, seed=11, trace=False)
        texts.add(tuple(token for step in steps for token in step.emitted))
    assert len(texts) == 1


@pytest.mark.parametrize("top_p, top_k", [(0.9, 0), (0.35, 0), (1.0, 7), (0.6, 50), (0.999999, 0)])
def test_processed_distribution_of_a_large_vocabulary_equals_the_librarys(top_p, top_k):
    """Large enough that the quick path, which never sorts the vocabulary, is the one taken."""
    logits = torch.randn(16384, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3
    ids, probabilities = Sampling(0.8, top_p, top_k).distribution(logits)
    whole = torch.zeros_like(logits)
    whole[ids] = probabilities
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.8)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    expected = torch.softmax(warpers(None, logits[None])[0], dim=-1)
    torch.testing.assert_close(whole, expected, atol=1e-12, rtol=1e-9)
