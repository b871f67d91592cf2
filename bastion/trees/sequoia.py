"""Sequoia's tree: the shape with the most expected tokens for acceptance rates measured by rank (arXiv 2402.12374, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bastion.errors import UserError
from bastion.trees.static import TreeShape


def sequoia_shape(rates: Sequence[float], nodes: int, levels: int | None = None) -> TreeShape:
    """The tree of exactly `nodes` nodes, root included, with the most expected tokens.

    rates [K]: how often the child of each rank is the accepted one, given that its parent is. Any
    order: a node with k children has those of the k first ranks. levels: how deep the tree may be,
    root included; None for no limit. Raises UserError when no tree of that size fits.
    """
    values = np.asarray(rates, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all() or (values < 0).any() or values.sum() > 1 + 1e-6:
        raise UserError("Give the acceptance rates by rank as numbers of 0 or more that add up to 1 at most.")
    if nodes < 1:
        raise UserError(f"A tree holds at least its root: give 1 node or more, not {nodes}.")
    deepest = nodes if levels is None else min(levels, nodes)
    if deepest < 1 or nodes > _largest(len(values), deepest):
        raise UserError(f"No tree of {nodes} nodes has at most {levels} levels and {len(values)} children a node; "
                        "ask for fewer nodes, more levels or rates of more ranks.")
    best, splits = _solve(values, nodes, deepest)
    return _unfold(best, splits, nodes, deepest)


def _largest(width: int, levels: int) -> int:
    return levels if width == 1 else (width**levels - 1) // (width - 1)


def _solve(rates: np.ndarray, nodes: int, levels: int) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """best[d][n]: most expected tokens of n nodes in d levels at most (-inf where none fits).

    splits[d][k][m]: nodes given to the child of rank k - 1 in the best share of m nodes among the
    first k children; splits[d][0][n] holds the number of children of the best tree of n nodes.
    """
    nothing = np.full(nodes + 1, -np.inf)
    best, splits = [nothing], [[]]
    for level in range(1, levels + 1):
        below = best[level - 1]
        shares = np.full(nodes + 1, -np.inf)  # over m: the best of m nodes among the children so far
        shares[0] = 0.0
        top = nothing.copy()
        top[1] = 1.0
        children = np.zeros(nodes + 1, np.int64)
        taken = [children]
        for k, rate in enumerate(rates if level > 1 else (), start=1):
            gains = np.where(below > -np.inf, rate * np.where(below > -np.inf, below, 0.0), -np.inf)
            table = np.full((nodes + 1, nodes + 1), -np.inf)  # [m, j]: j of m nodes to this child
            for j in range(1, nodes + 1):
                table[j:, j] = shares[: nodes + 1 - j] + gains[j]
            choice = table.argmax(axis=1)
            shares = table[np.arange(nodes + 1), choice]
            taken.append(choice)
            better = 1.0 + shares[:-1] > top[1:]
            top[1:][better] = 1.0 + shares[:-1][better]
            children[1:][better] = k
            if not (shares > -np.inf).any():
                break
        best.append(top)
        splits.append(taken)
        if level > 2 and np.array_equal(best[level], best[level - 1]):
            # deeper trees change nothing any more: the rest is the same table
            best += [top] * (levels - level)
            splits += [taken] * (levels - level)
            break
    return best, splits


def _unfold(best: list[np.ndarray], splits: list[list[np.ndarray]], nodes: int, levels: int) -> TreeShape:
    """Level by level, so that parents precede children."""
    parents, depths, ranks = [-1], [0], [0]
    waiting = [(0, nodes, levels)]
    while waiting:
        following = []
        for node, size, level in waiting:
            left = size - 1
            sizes = []
            for k in range(int(splits[level][0][size]), 0, -1):
                sizes.append(int(splits[level][k][left]))
                left -= sizes[-1]
            for rank, share in enumerate(reversed(sizes)):
                following.append((len(parents), share, level - 1))
                parents.append(node)
                depths.append(depths[node] + 1)
                ranks.append(rank)
        waiting = following
    return TreeShape(np.array(parents, np.int64), np.array(depths, np.int64), np.array(ranks, np.int64))
