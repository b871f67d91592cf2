"""The N best drafted paths with arrays, a depth at a time, in the order in which a heap would pop them.

A path costs no less than the path without its last token, so the N cheapest are found going down: of each
depth only the paths stay that cost no more than the N-th cheapest so far.
"""

from __future__ import annotations

import numpy as np

CANDIDATES = 16
"""Times N: with more equals than this at the border, a heap is the better way."""

Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""costs float64 [P]; parents (places from 1, 0 for the root), depths, ranks int64 [P]."""


def paths_at_once(log_probs: np.ndarray, count: int, ties: str) -> Columns | None:
    """The `count` best paths, or all when there are fewer, from log_probs [depth, k] with sorted rows.

    None where arrays are not the way: a log-prob above 0 (by rounding; paths then get cheaper on the way
    down), or so many equal paths at the border that they would not fit.
    """
    rows = -log_probs.astype(np.float64)
    if rows.size and rows[:, 0].min() < 0:
        return None
    found = _cheapest(rows, count)
    if found is None:
        return None
    costs, above, depths, ranks = found
    order = np.argsort(costs, kind="stable")
    tied = np.diff(costs[order]) == 0
    if tied.any():
        if ties == "ranks":
            order = _by_ranks(costs, above, depths, ranks)
        else:
            order = _by_creation(order, tied, costs, above, ranks)
    places = np.empty(len(order) + 1, dtype=np.int64)
    places[order] = np.arange(1, len(order) + 1)
    places[-1] = 0  # read by children of the root, whose `above` is -1
    order = order[:count]
    return costs[order], places[above[order]], depths[order], ranks[order]


def _cheapest(rows: np.ndarray, count: int) -> Columns | None:
    """Every path that costs no more than the `count`-th cheapest, parents before children, siblings in a
    row by rank; `above` counts these paths from 0, -1 for the root. None when there are too many."""
    width = min(rows.shape[1], count)  # behind `count` siblings nothing is among the `count` best
    costs, above = np.zeros(1), np.array([-1])  # of the paths that are extended next
    levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    pool, bound, first = np.zeros(0), np.inf, 0
    for row in rows[:, :width]:
        row = row[: np.searchsorted(row, np.inf)]
        if bound == np.inf:
            bound = _early_bound(row, costs, pool, count)
        # A little more than fits: which do is decided by the sums themselves, below.
        widths = np.searchsorted(row, bound * (1 + 1e-12) - costs, side="right")
        total = int(widths.sum())
        if total > CANDIDATES * count + rows.shape[1]:
            return None
        if not total:
            break
        parent = np.repeat(np.arange(len(widths)), widths)
        rank = np.arange(total) - np.repeat(np.cumsum(widths) - widths, widths)
        extended = costs[parent] + row[rank]
        keep = extended <= bound
        pool = np.concatenate((pool, extended[keep]))
        if len(pool) >= count:
            pool = np.partition(pool, count - 1)[:count]
            bound = pool[-1]
            keep = extended <= bound
        costs = extended[keep]
        levels.append((costs, above[parent[keep]], rank[keep]))
        above = first + np.arange(len(costs))
        first += len(costs)
    if not levels:
        none = np.zeros(0, dtype=np.int64)
        return np.zeros(0), none, none, none
    depths = np.repeat(np.arange(1, len(levels) + 1), [len(level[0]) for level in levels])
    costs, above, ranks = (np.concatenate(column) for column in zip(*levels, strict=True))
    return _within(bound, costs, above, depths, ranks)


def _early_bound(row: np.ndarray, costs: np.ndarray, pool: np.ndarray, count: int) -> float:
    """Any cost that `count` paths do not exceed, before there are so many: those of this depth that can be
    among the `count` best at all. Behind the j-th parent and the r-th token, j * r paths are no dearer."""
    widths = np.minimum(count // np.arange(1, len(costs) + 1), len(row))
    if len(pool) + widths.sum() < count:
        return np.inf
    parent = np.repeat(np.arange(len(widths)), widths)
    rank = np.arange(len(parent)) - np.repeat(np.cumsum(widths) - widths, widths)
    reached = np.concatenate((pool, np.sort(costs)[parent] + row[rank]))
    return float(np.partition(reached, count - 1)[count - 1])


def _within(bound: float, costs: np.ndarray, above: np.ndarray, depths: np.ndarray, ranks: np.ndarray) -> Columns:
    """Those that cost `bound` at most, renumbered: what was kept before the bound came down is dropped."""
    keep = costs <= bound
    if keep.all():
        return costs, above, depths, ranks
    number = np.append(np.cumsum(keep) - 1, -1)
    return costs[keep], number[above[keep]], depths[keep], ranks[keep]


def _by_ranks(costs: np.ndarray, above: np.ndarray, depths: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Places by cost, then by the ranks from the root down, a path before those that go on from it."""
    deepest = int(depths.max())
    spelled = np.full((len(costs), deepest + 1), -1, dtype=np.int64)  # the last column takes what lies above the root
    node = np.arange(len(costs))
    while (node >= 0).any():
        spelled[np.arange(len(costs)), np.where(node >= 0, depths[node] - 1, deepest)] = ranks[node]
        node = np.where(node >= 0, above[node], -1)
    return np.lexsort((*spelled[:, :deepest].T[::-1], costs))


def _by_creation(order: np.ndarray, tied: np.ndarray, costs: np.ndarray, above: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Places by cost, then by when a heap search creates the path: on popping the path above it for a first
    child, on popping the sibling before it for another; the child is created before the sibling.

    order: places by cost alone; tied bool [P - 1]: whether a place costs as much as the one before it. Paths
    of equal cost are popped first in, first out. Those made by cheaper paths come first, by the places of
    their makers; then those that these make, and so on: `turn` counts the makers of the same cost. Places of
    makers may themselves depend on a tie, so sorting is repeated until nothing moves; each pass settles one
    more link of such a chain.
    """
    count = len(costs)
    maker = np.where(ranks == 0, above, np.arange(count) - 1)
    turn = _links(np.where((maker >= 0) & (costs[maker] == costs), maker, -1))
    member = np.zeros(count, dtype=bool)
    member[1:] |= tied
    member[:-1] |= tied
    slots = np.flatnonzero(member)  # the places that ties share out
    paths = order[slots]
    group = np.cumsum(np.concatenate(([1], ~tied)))[slots]
    # One integer a path: group, turn, the maker's place, child before sibling.
    high = (group * (int(turn.max()) + 1) + turn[paths]) * (count + 1)
    makers, sibling = maker[paths], ranks[paths] > 0
    place = np.empty(count + 1, dtype=np.int64)
    place[order] = np.arange(1, count + 1)
    place[-1] = 0  # of the root, read where maker is -1
    while True:
        ranked = paths[np.argsort((high + place[makers]) * 2 + sibling, kind="stable")]
        if (place[ranked] == slots + 1).all():
            break
        place[ranked] = slots + 1
    order[slots] = ranked
    return order


def _links(previous: np.ndarray) -> np.ndarray:
    """How many links of `previous` (int64 [P], -1 ends) can be followed from each place."""
    links = (previous >= 0).astype(np.int64)
    jump = previous.copy()
    while (live := jump >= 0).any():
        links[live] += links[jump[live]]
        jump[live] = jump[jump[live]]
    return links
