"""Every acceptance rule by exact enumeration: all draws answered in all ways, probabilities multiplied."""

import json
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bastion.decoding.acceptance import walk
from bastion.decoding.sampled_acceptance import block, multi_round
from bastion.trees import DraftMarginals, DraftTree, TreeShape, grow_sampled, width_shape
from bastion.trees.sampled import proposal
from tests.golden import golden

GOLDEN = json.loads(golden("bastion_temperature.json").read_text())
VOCAB = 4


class Script:
    """Draws that follow given answers and take the first possible one after them."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def __call__(self, probabilities):
        probabilities = np.asarray(probabilities)
        place = len(self.asked)
        answer = self.answers[place] if place < len(self.answers) else int(np.flatnonzero(probabilities > 0)[0])
        self.asked.append((probabilities, answer))
        return answer


def enumerated(outcome):
    """{what `outcome(draws)` returns: its exact probability}."""
    found, waiting = defaultdict(float), [[]]
    while waiting:
        script = Script(waiting.pop())
        known = len(script.answers)
        result = outcome(script)
        mass = 1.0
        for place, (probabilities, answer) in enumerate(script.asked):
            if place >= known:
                taken = [asked[1] for asked in script.asked[:place]]
                waiting += [[*taken, int(other)] for other in np.flatnonzero(probabilities > 0) if other != answer]
            mass *= probabilities[answer] / probabilities.sum()
        found[result] += mass
    return found


def variation(left, right) -> float:
    return 0.5 * sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in {*left, *right})


class Toy:
    """A target that looks at all tokens before, and marginals of a drafter that does not; both random."""

    def __init__(self, seed: int, depth: int, sharp: float = 1.0, k: int = VOCAB, zeros: bool = False):
        self.random = np.random.default_rng(seed)
        self.rows: dict[tuple[int, ...], np.ndarray] = {}
        self.sharp, self.zeros, self.seed = sharp, zeros, seed
        probabilities = np.sort(self.random.dirichlet(np.ones(VOCAB) * sharp, depth), axis=1)[:, ::-1][:, :k]
        ids = np.stack([self.random.permutation(VOCAB)[:k] for _ in range(depth)])
        self.marginals = DraftMarginals(ids, np.log(probabilities))
        self.proposals = []
        for row in range(depth):
            dense = np.zeros(VOCAB)
            dense[ids[row]] = proposal(self.marginals, row + 1)
            self.proposals.append(dense)

    def target(self, path: tuple[int, ...]) -> np.ndarray:
        if path not in self.rows:
            own = np.random.default_rng([self.seed, 7, *path])
            row = own.dirichlet(np.ones(VOCAB) * self.sharp)
            if self.zeros:   # as top-p leaves them
                row[own.permutation(VOCAB)[:2]] = 0.0
                row = row / row.sum()
            self.rows[path] = row
        return self.rows[path]

    def plain(self, count: int):
        found = {(): 1.0}
        for _ in range(count):
            found = {(*path, token): mass * p for path, mass in found.items() for token, p in enumerate(self.target(path)) if p > 0}
        return found

    def emitted(self, rule, shape: TreeShape, count: int):
        def outcome(draws):
            tree = grow_sampled(self.marginals, 0, shape, draws)
            spelt = [tuple(tree.token_ids[tree.path(node)[1:]].tolist()) for node in range(tree.nodes)]
            path, bonus = rule(tree, lambda node: self.proposals[int(tree.depths[node])], lambda node: self.target(spelt[node]), draws)
            tokens = (*spelt[path[-1]], bonus)
            while len(tokens) < count:
                tokens = (*tokens, draws(self.target(tokens)))
            return tokens[:count]
        return enumerated(outcome)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("k", [2, VOCAB])
@pytest.mark.parametrize("widths", [[1], [2], [3], [2, 1], [1, 2], [4]])
def test_several_drawn_children_keep_the_targets_distribution(widths, k, zeros):
    toy = Toy(len(widths) + 10 * k, len(widths), k=k, zeros=zeros)
    assert variation(toy.emitted(multi_round, width_shape(widths), 3), toy.plain(3)) < 1e-12


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([0.3, 1.0, 5.0]), st.sampled_from([[2], [2, 1]]))
def test_so_they_do_for_any_drafter(seed, sharp, widths):
    toy = Toy(seed, len(widths), sharp)
    assert variation(toy.emitted(multi_round, width_shape(widths), 2), toy.plain(2)) < 1e-12


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_drawn_chain_verified_as_a_block_keeps_the_targets_distribution(length, zeros):
    toy = Toy(length, length, zeros=zeros)
    count = 3 if length == 3 else length + 1
    assert variation(toy.emitted(block, width_shape([1] * length), count), toy.plain(count)) < 1e-12


def accepted_tokens(toy, rule, length) -> float:
    def outcome(draws):
        tree = grow_sampled(toy.marginals, 0, width_shape([1] * length), draws)
        spelt = [tuple(tree.token_ids[tree.path(node)[1:]].tolist()) for node in range(tree.nodes)]
        return len(rule(tree, lambda node: toy.proposals[int(tree.depths[node])], lambda node: toy.target(spelt[node]), draws)[0])
    return sum(length * mass for length, mass in enumerated(outcome).items())


def test_a_block_is_accepted_at_least_as_far_as_token_by_token():
    gains = [accepted_tokens(toy, block, 3) - accepted_tokens(toy, multi_round, 3) for toy in (Toy(seed, 3) for seed in range(6))]
    assert min(gains) > -1e-12 and max(gains) > 0.01


def test_drawn_children_are_distinct_and_follow_the_marginals():
    toy = Toy(5, 1)
    found = enumerated(lambda draws: tuple(grow_sampled(toy.marginals, 0, width_shape([2]), draws).token_ids[1:].tolist()))
    q = toy.proposals[0]
    for (first, second), mass in found.items():
        assert first != second and mass == pytest.approx(q[first] * q[second] / (1 - q[first]))
    tree = grow_sampled(toy.marginals, 0, width_shape([9, 1, 1]), Script([]))
    assert tree.nodes == 5 and tree.depths.max() == 1     # four tokens there are, one depth is drafted


def toy_walk(example, mode):
    """First tokens of the golden's toy: the tree is verified once, later tokens are the target's own."""
    tree = example["tree"]
    made = DraftTree(np.array(tree["token_ids"]), np.array(tree["parent_indices"]), np.array(tree["depths"]),
                     np.zeros(len(tree["depths"])), "toy")
    logits = torch.tensor(example["node_logits"], dtype=torch.float64) / example["temperature"]
    rows = torch.softmax(logits, dim=-1).numpy()

    def outcome(draws):
        if mode == "walk":
            path, bonus = walk(made, lambda node: draws(rows[node]))
        else:
            path, _ = walk(made, lambda node: int(rows[node].argmax()))
            bonus = draws(rows[path[-1]])
        return (*made.token_ids[path[1:]].tolist(), bonus)[:1]
    return enumerated(outcome), {(token,): p for token, p in enumerate(rows[0])}


@pytest.mark.parametrize("example", GOLDEN["toy_examples"], ids=lambda e: e["example"])
def test_the_published_argmax_walk_goes_wrong_by_the_recorded_amount(example):
    ours, target = toy_walk(example, "walk")
    theirs, _ = toy_walk(example, "reference-argmax")
    assert variation(ours, target) < 1e-12
    assert variation(theirs, target) == pytest.approx(example["tv_first_token_official"], abs=1e-6)
    assert [theirs.get((t,), 0.0) for t in range(example["vocab"])] == pytest.approx(example["first_token_official_bastion"], abs=1e-6)
