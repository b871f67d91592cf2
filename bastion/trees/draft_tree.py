"""The tree that the target verifies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bastion.step import GrowthLog


@dataclass(frozen=True, eq=False)
class DraftTree:
    """n nodes in an order where parents precede children; node 0 is the root, at depth 0.

    token_ids, parents, depths: int64 [n], parents[0] == -1. path_log_probs: float64 [n], natural
    log of the product of the marginals along the path, 0 at the root. stop_reason: "fixed budget",
    "price", "max nodes", "exhausted", "chain" or "beam".
    """

    token_ids: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    path_log_probs: np.ndarray
    stop_reason: str
    grow_log: Callable[[], GrowthLog | None] = field(default=lambda: None, repr=False)

    @cached_property
    def growth(self) -> GrowthLog | None:
        """The expansion log of best-first growth; None for a tree grown otherwise.

        Made on first use: pops past the stop are for charts, so whoever times a step reads this
        after the step's clock has stopped.
        """
        return self.grow_log()

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def nodes(self) -> int:
        """Nodes to verify, root included."""
        return len(self.token_ids)

    @property
    def surrogate(self) -> float:
        """S(n), the drafter's estimate of the tokens this step emits (root counted as 1)."""
        return float(np.exp(self.path_log_probs).sum())

    def children(self, node: int) -> np.ndarray:
        """int64 indices of a node's children, in the order they were added."""
        return np.flatnonzero(self.parents == node)

    def path(self, node: int) -> np.ndarray:
        """int64 [depth + 1] node indices from the root to `node`, both included."""
        path = [int(node)]
        while path[-1] > 0:
            path.append(int(self.parents[path[-1]]))
        return np.array(path[::-1], dtype=np.int64)

    def ancestor_mask(self) -> np.ndarray:
        """bool [n, n]; row i is true at node i and its ancestors: what node i may attend to."""
        mask = np.zeros((self.nodes, self.nodes), dtype=bool)
        rows = np.arange(self.nodes)
        # The root is made its own parent, so that every row can climb the same number of steps.
        above = np.maximum(self.parents, 0)
        reached = rows
        for _ in range(int(self.depths.max()) + 1):
            mask[rows, reached] = True
            reached = above[reached]
        return mask
