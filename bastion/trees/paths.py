"""The drafted paths in best-first order: popped from a heap one by one, or all at once with arrays.

Both give the same order to the last tie. The heap is the faster one for the first few dozen paths; past
them its price a path is a thousand times that of an array's element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import islice
from math import inf
from typing import Literal

import numpy as np

from bastion.trees.paths_at_once import paths_at_once

HEAP_PATHS = 64
"""So many paths are popped from the heap; more are found at once."""

Pop = tuple[float, int | tuple[int, ...], int, int, int, float]
"""(-path log prob, tie key, parent's pop number, depth, rank, -parent's path log prob)."""

Ties = Literal["creation", "ranks"]


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """P paths, best first. costs: float64 [P], -path log prob; parents int64 [P]: place of the path without
    its last token, counted from 1, 0 for the root; depths (from 1), ranks: int64 [P]."""

    costs: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    ranks: np.ndarray

    def __len__(self) -> int:
        return len(self.costs)

    def first(self, count: int) -> Paths:
        return Paths(self.costs[:count], self.parents[:count], self.depths[:count], self.ranks[:count])


@dataclass(eq=False)
class BestPaths:
    """All drafted paths, most probable first, from log_probs [depth, k] with sorted rows; found as far as asked for.

    ties: equal path probabilities go by creation order, a path's child being created before its next
    sibling ("creation"), or by their ranks from the root down ("ranks").
    """

    log_probs: np.ndarray
    ties: Ties = "creation"
    popped: list[Pop] = field(default_factory=list)
    found: Paths | None = None

    def __post_init__(self) -> None:
        self.pops = best_first_pops(self.log_probs, self.ties)

    def first(self, count: int) -> Paths:
        """The `count` best, or all when there are fewer."""
        if self.found is not None and len(self.found) >= count:
            return self.found.first(count)
        if count > HEAP_PATHS:
            found = paths_at_once(self.log_probs, count, self.ties)
            if found is not None:
                self.found = Paths(*found)
                return self.found.first(count)
        self.popped += islice(self.pops, max(0, count - len(self.popped)))
        self.found = _columns(self.popped)
        return self.found.first(count)


def best_first_pops(log_probs: np.ndarray, ties: Ties = "creation") -> Iterator[Pop]:
    """The same paths one at a time, from a heap.

    Lawler's enumeration: the next path is a child of a popped one by the best token of its depth,
    or replaces a popped path's last token by the next best.
    """
    depth_count, width = log_probs.shape
    by_ranks = ties == "ranks"
    rows: list[list[float]] = []  # -log_probs, a row turned to Python floats when first reached

    def reach(depth: int) -> None:
        if depth < depth_count and depth == len(rows):
            rows.append((-log_probs[depth].astype(np.float64)).tolist())

    heap: list[Pop] = []
    if width:
        reach(0)
        if rows and rows[0][0] < inf:
            heap.append((rows[0][0], (0,) if by_ranks else 0, 0, 1, 0, 0.0))
    number = created = 0
    while heap:
        pop = heap[0]
        yield pop
        number += 1
        cost, key, parent, depth, rank, parent_cost = pop
        # The first push takes the popped entry's place: one sift in place of two.
        push = heapreplace
        if depth < depth_count:
            if depth == len(rows):
                reach(depth)
            child = cost + rows[depth][0]
            if child < inf:
                created += 1
                child_key = key + (0,) if by_ranks else created
                push(heap, (child, child_key, number, depth + 1, 0, cost))
                push = heappush
        rank += 1
        if rank < width:
            sibling = parent_cost + rows[depth - 1][rank]
            if sibling < inf:
                created += 1
                sibling_key = key[:-1] + (rank,) if by_ranks else created
                push(heap, (sibling, sibling_key, parent, depth, rank, parent_cost))
                push = heappush
        if push is heapreplace:
            heappop(heap)


def _columns(popped: list[Pop]) -> Paths:
    if not popped:
        none = np.zeros(0, dtype=np.int64)
        return Paths(np.zeros(0), none, none, none)
    costs, _, parents, depths, ranks, _ = zip(*popped, strict=True)
    return Paths(np.array(costs), *(np.array(column, dtype=np.int64) for column in (parents, depths, ranks)))
