"""Trees whose shape is fixed before a step: which ranks each node's children take, whatever the marginals say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bastion.errors import UserError
from bastion.trees.draft_tree import DraftTree
from bastion.trees.marginals import DraftMarginals


@dataclass(frozen=True, eq=False)
class TreeShape:
    """n nodes, parents before children. parents, depths: int64 [n] as in DraftTree; ranks: int64 [n], place
    among the drafter's proposals at the node's depth, 0 for the most probable (0 at the root, unused)."""

    parents: np.ndarray
    depths: np.ndarray
    ranks: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.parents)

    def expected_tokens(self, rates: Sequence[float]) -> float:
        """Sum over nodes, root counted as 1, of the product of rates[rank] along the path (Sequoia, eq. 2)."""
        values = np.ones(self.nodes)
        for node in range(1, self.nodes):
            values[node] = values[self.parents[node]] * rates[self.ranks[node]]
        return float(values.sum())


def grow_static(marginals: DraftMarginals, root_token: int, shape: TreeShape, reason: str) -> DraftTree:
    """The tree of `shape` over these marginals. Nodes deeper than the drafter drafts, of ranks it does not
    give, or of tokens that may not be drafted (-inf) are left out, with all below them."""
    kept, place = [0], {0: 0}
    parents, paths = [-1], [0.0]
    for node in range(1, shape.nodes):
        depth, rank, parent = int(shape.depths[node]), int(shape.ranks[node]), int(shape.parents[node])
        if parent not in place or depth > marginals.depth or rank >= marginals.k:
            continue
        log_prob = float(marginals.log_probs[depth - 1, rank])
        if log_prob == -np.inf:
            continue
        place[node] = len(kept)
        kept.append(node)
        parents.append(place[parent])
        paths.append(paths[place[parent]] + log_prob)
    depths, ranks = shape.depths[kept], shape.ranks[kept]
    return DraftTree(
        token_ids=np.concatenate(([root_token], marginals.token_ids[depths[1:] - 1, ranks[1:]])),
        parents=np.array(parents, dtype=np.int64),
        depths=depths,
        path_log_probs=np.array(paths),
        stop_reason=reason,
    )


def width_shape(widths: Sequence[int]) -> TreeShape:
    """SpecInfer's expansion: every node at depth d has `widths[d]` children, the most probable ones."""
    if not widths or any(width < 1 for width in widths):
        raise UserError("Give the expansion widths as whole numbers of 1 or more, such as 4,2,2,1.")
    parents, depths, ranks = [-1], [0], [0]
    level = [0]
    for depth, width in enumerate(widths, start=1):
        below = []
        for parent in level:
            for rank in range(width):
                below.append(len(parents))
                parents.append(parent)
                depths.append(depth)
                ranks.append(rank)
        level = below
    return TreeShape(np.array(parents, np.int64), np.array(depths, np.int64), np.array(ranks, np.int64))
