"""Acceptance for children that were drawn from the drafter: which of them the target keeps, and what it says instead.

Both rules emit exactly the target's distribution, which enumeration proves (tests/test_acceptance_rules.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from bastion.decoding.sampling import Draws
from bastion.trees import DraftTree

TargetRow = Callable[[int], np.ndarray]
"""node -> the target's processed distribution behind it, float64 [vocab]."""


Proposals = Callable[[int], np.ndarray]
"""node -> what the first of its children was drawn from, float64 [vocab]."""


def multi_round(tree: DraftTree, proposals: Proposals, target: TargetRow, draws: Draws) -> tuple[np.ndarray, int]:
    """Speculative sampling over several children drawn without replacement (SpecInfer, algorithm 2; Sequoia, section 3.2).

    Each child is kept with probability min(1, p/q); after a refusal p is what q did not cover, and q
    what the next child was drawn from. Returns (accepted nodes int64 [a], root first; bonus token).
    """
    path = [0]
    while True:
        p = target(path[-1])
        children = tree.children(path[-1])
        if not len(children):
            return np.array(path, dtype=np.int64), draw_from(p, draws)
        q = proposals(path[-1]).copy()
        for child in children:
            token = int(tree.token_ids[child])
            if coin(p[token] / q[token], draws):
                path.append(int(child))
                break
            p = normalised(np.maximum(p - q, 0.0))
            q[token] = 0.0
            q = normalised(q)
        else:
            return np.array(path, dtype=np.int64), draw_from(p, draws)


def block(tree: DraftTree, proposals: Proposals, target: TargetRow, draws: Draws) -> tuple[np.ndarray, int]:
    """Block verification of one drawn chain (Sun et al., arXiv 2403.10444, algorithm 2): never accepts fewer
    tokens on average than going token by token, since a doubtful token may be made good by later ones."""
    rows, drawn_from = [target(node) for node in range(tree.nodes)], [proposals(node) for node in range(tree.nodes - 1)]
    deepest = tree.nodes - 1
    weights = [1.0]  # the chain's running ratio, at most 1
    for depth in range(1, deepest + 1):
        token = int(tree.token_ids[depth])
        weights.append(min(weights[-1] * rows[depth - 1][token] / drawn_from[depth - 1][token], 1.0))
    kept = 0
    for depth in range(1, deepest + 1):
        if depth == deepest:
            chance = weights[depth]
        else:
            more = float(np.maximum(weights[depth] * rows[depth] - drawn_from[depth], 0.0).sum())
            chance = more / (more + 1.0 - weights[depth]) if more + 1.0 - weights[depth] > 0 else 1.0
        if coin(chance, draws):
            kept = depth
    rest = rows[kept] if kept == deepest else normalised(np.maximum(weights[kept] * rows[kept] - drawn_from[kept], 0.0))
    return np.arange(kept + 1, dtype=np.int64), draw_from(rest, draws)


def coin(chance: float, draws: Draws) -> bool:
    """True with probability min(1, chance); asks for no draw where there is nothing to decide."""
    if chance >= 1.0:
        return True
    if chance <= 0.0:
        return False
    return draws(torch.tensor([chance, 1.0 - chance], dtype=torch.float64)) == 0


def draw_from(probabilities: np.ndarray, draws: Draws) -> int:
    return draws(torch.from_numpy(probabilities))


def normalised(values: np.ndarray) -> np.ndarray:
    total = values.sum()
    return values / total if total > 0 else values
