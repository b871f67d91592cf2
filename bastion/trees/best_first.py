"""Best-first growth: always the most probable path not yet in the tree."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from itertools import islice
from math import exp, inf
from typing import Literal

import numpy as np

from bastion.step import GrowthLog
from bastion.trees.budgets import Budget, StopRule
from bastion.trees.draft_tree import DraftTree
from bastion.trees.marginals import DraftMarginals
from bastion.trees.stopping import take_while_worth

PAST_THE_STOP = 64
"""Pops logged after the stop when tracing."""

Pop = tuple[float, int | tuple[int, ...], int, int, int, float]
"""(-path log prob, tie key, parent's pop number, depth, rank, -parent's path log prob)."""

Ties = Literal["creation", "ranks"]


def grow_best_first(
    marginals: DraftMarginals,
    root_token: int,
    budget: Budget,
    trace: bool = False,
    ties: Ties = "creation",
) -> DraftTree:
    """Add nodes by path probability until the budget stops (BASTION's tree; DDTree's when fixed).

    No other tree of the same size has a greater surrogate: every prefix of a path is at least as
    probable as the path, so the most probable paths form a tree. Equal path probabilities go by
    creation order, a node's child being created before its next sibling; ties="ranks" orders them
    by their ranks from the root down, as DDTree's published code does. `tree.growth` logs the pops;
    with `trace` it goes 64 pops past the stop, made when it is first read.
    """
    pops = best_first_pops(marginals.log_probs, ties)
    popped: list[Pop] = []
    rule = budget.stop_rule()
    passed, sides, stop = take_while_worth(_costs(pops, popped), budget, rule)
    nodes = budget.rounded(passed + 1)

    def log() -> GrowthLog:
        refused = rule is not None and stop == "price"
        more = list(islice(pops, max(0, passed + refused + PAST_THE_STOP - len(popped)))) if trace else []
        return _growth_log(marginals, popped + more, nodes - 1, passed, rule, sides)

    columns = _columns(popped[: nodes - 1])
    depths, ranks = columns[1], columns[2]
    return DraftTree(
        token_ids=np.concatenate(([root_token], marginals.token_ids[depths - 1, ranks])),
        parents=np.concatenate(([-1], columns[0])),
        depths=np.concatenate(([0], depths)),
        path_log_probs=np.concatenate(([0.0], columns[3])),
        stop_reason=stop,
        grow_log=log,
    )


def best_first_pops(log_probs: np.ndarray, ties: Ties = "creation") -> Iterator[Pop]:
    """All drafted paths, most probable first, from log_probs [depth, k] with sorted rows.

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


def _costs(pops: Iterator[Pop], popped: list[Pop]) -> Iterator[float]:
    """-path log probs of the pops, which are kept in `popped` as they are drawn."""
    for pop in pops:
        popped.append(pop)
        yield pop[0]


def _columns(popped: list[Pop]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """parents, depths, ranks int64 [P] and path_log_probs float64 [P]."""
    if not popped:
        none = np.zeros(0, dtype=np.int64)
        return none, none, none, np.zeros(0)
    costs, _, parents, depths, ranks, _ = zip(*popped, strict=True)
    return (
        np.array(parents, dtype=np.int64),
        np.array(depths, dtype=np.int64),
        np.array(ranks, dtype=np.int64),
        -np.array(costs),
    )


def _growth_log(
    marginals: DraftMarginals,
    popped: list[Pop],
    bought: int,
    passed: int,
    rule: StopRule | None,
    sides: list[tuple[float, float]],
) -> GrowthLog:
    """The log of `popped`: the first `bought` are in the tree, the first `passed` passed the rule.

    Past the stop both sides go on as if every earlier pop had been bought.
    """
    parents, depths, ranks, path_log_probs = _columns(popped)
    gains = np.full(len(popped), np.nan)
    prices = np.full(len(popped), np.nan)
    if rule is not None and popped:
        surrogates = np.cumsum(np.concatenate(([1.0], np.exp(path_log_probs))))
        sides = sides + [
            rule(i + 1, exp(path_log_probs[i]), surrogates[i])
            for i in range(len(sides), len(popped))
        ]
        gains, prices = np.array(sides).T
    numbers = np.arange(len(popped))
    return GrowthLog(
        token_ids=marginals.token_ids[depths - 1, ranks],
        parents=parents,
        depths=depths,
        ranks=ranks,
        path_log_probs=path_log_probs,
        gains=gains,
        prices=prices,
        bought=numbers < bought,
        dropped=(numbers >= bought) & (numbers < passed),
    )
