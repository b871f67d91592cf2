"""Which drafted tokens the target keeps: a walk from the root along the target's own choices.

At each node the target chooses one token, its argmax or one draw from its distribution. If a child
carries that token the walk goes on there; if none does, the token is the bonus. Each emitted token
is therefore the target's own choice given what precedes it, whatever the tree looks like, which is
what makes this lossless for trees whose children are chosen and not sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from bastion.decoding.sampling import Draws, Sampling
from bastion.models.top_k import best_and_lead, best_token
from bastion.trees import DraftTree


def accept(tree: DraftTree, logits: torch.Tensor, sampling: Sampling, draws: Draws) -> tuple[np.ndarray, int]:
    """(accepted node indices int64 [a], root first; bonus token id). logits: [n, vocab], a row per node."""
    if sampling.greedy:
        if logits.device.type == "cpu":  # only the nodes that the walk visits
            return walk(tree, lambda node: best_token(logits[node]))
        return walk(tree, logits.argmax(dim=-1).tolist().__getitem__)
    return walk(tree, lambda node: sampling.choose(logits[node], draws))


def walk(tree: DraftTree, choose: Callable[[int], int]) -> tuple[np.ndarray, int]:
    """Follow `choose(node)` until no child carries the chosen token; it is asked once per node visited."""
    path = [0]
    while True:
        token = choose(path[-1])
        below = np.flatnonzero((tree.parents == path[-1]) & (tree.token_ids == token))
        if not len(below):
            return np.array(path, dtype=np.int64), token
        path.append(int(below[0]))


class Greedy(Protocol):
    """The target's choices under temperature 0 at the nodes of a tree."""

    def choose(self, node: int) -> int: ...

    def gaps(self, nodes: np.ndarray) -> np.ndarray:
        """float32: how far the best logit lies above the second, at nodes that were chosen at."""


class EveryNode:
    """Of every node, worked out on the device and brought over in one copy: int32 [2, n] of `top_k.choices`."""

    def __init__(self, found: torch.Tensor):
        ids, bits = found.cpu().numpy()
        self.ids, self.leads = ids.tolist(), bits.view(np.float32)

    def choose(self, node: int) -> int:
        return self.ids[node]

    def gaps(self, nodes: np.ndarray) -> np.ndarray:
        return self.leads[nodes]


class Visited:
    """Of the nodes that a walk asks for, of logits [n, vocab] on a CPU, where most are never asked."""

    def __init__(self, logits: torch.Tensor):
        self.logits = logits
        self.leads: dict[int, np.float32] = {}

    def choose(self, node: int) -> int:
        token, self.leads[node] = best_and_lead(self.logits[node])
        return token

    def gaps(self, nodes: np.ndarray) -> np.ndarray:
        return np.array([self.leads[node] for node in nodes.tolist()], dtype=np.float32)
