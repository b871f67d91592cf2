"""Level-wise beam: the yardstick for best-first growth under the same marginals."""

from __future__ import annotations

import numpy as np

from bastion.trees.budgets import FixedBudget
from bastion.trees.draft_tree import DraftTree
from bastion.trees.marginals import DraftMarginals


def grow_beam(marginals: DraftMarginals, root_token: int, budget: FixedBudget) -> DraftTree:
    """Spread the nodes evenly over the depths and keep the most probable paths of each level.

    A level gets an even share of what is left, the upper ones the remainder; what a narrow level
    cannot use goes to the levels below. Every node of a level extends a kept node of the level
    above. Nodes come level by level, most probable first, ties by parent, then by rank.
    """
    tokens, parents = [np.array([root_token], dtype=np.int64)], [np.array([-1], dtype=np.int64)]
    depths, paths = [np.zeros(1, dtype=np.int64)], [np.zeros(1)]
    left, first = budget.nodes - 1, 0
    for depth in range(marginals.depth):
        width = -(-left // (marginals.depth - depth))
        if width == 0:
            break
        # Only the `width` best tokens below a node can be among the `width` best of the level.
        row = marginals.log_probs[depth, :width].astype(np.float64)
        candidates = (paths[-1][:, None] + row[None, :]).ravel()
        best = np.argsort(-candidates, kind="stable")[:width]
        best = best[np.isfinite(candidates[best])]
        if not len(best):
            break
        parent, rank = np.divmod(best, len(row))
        tokens.append(marginals.token_ids[depth, rank])
        parents.append(first + parent)
        depths.append(np.full(len(best), depth + 1, dtype=np.int64))
        first += len(paths[-1])
        paths.append(candidates[best])
        left -= len(best)
    return DraftTree(
        token_ids=np.concatenate(tokens),
        parents=np.concatenate(parents),
        depths=np.concatenate(depths),
        path_log_probs=np.concatenate(paths),
        stop_reason="exhausted" if left else "fixed budget",
    )
