"""What other temperatures would have done: the same trees scored again, and the trees grown again.

All of it is counterfactual. The target's tokens are known along the accepted path and one further, so a
regrown tree is credited with known tokens only: what it would have emitted is at least that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bastion.analysis.surrogate_evidence import RunEvidence
from bastion.analysis.temperature import temper
from bastion.trees import AdaptiveBudget, DraftMarginals, DraftTree, FixedBudget, grow_best_first


@dataclass(frozen=True, slots=True, eq=False)
class Regrowth:
    """One row per step whose tree could be grown again (arrays [r])."""

    row: np.ndarray            # int64, which decode step of the run
    adaptive: np.ndarray       # bool, the tree chose its own size
    nodes_before: np.ndarray   # int64, root included
    nodes_after: np.ndarray
    tokens_before: np.ndarray  # int64, emitted: the accepted path
    tokens_after: np.ndarray   # int64, emitted at least
    held: np.ndarray           # int64, accepted tokens that the regrown tree holds on its path
    seconds_before: np.ndarray # float64, predicted step time; NaN without a prediction
    seconds_after: np.ndarray
    capped: np.ndarray         # bool, grew as far as the run predicted times and would have gone on
    irreproducible: int        # best-first steps left out: growing at T = 1 does not give the recorded tree


def rescored(one: RunEvidence, temperatures: np.ndarray) -> np.ndarray:
    """S(n) of the recorded trees under tempered marginals, float64 [s]; NaN for a step without traced marginals.

    NaN too where a node's token is not among the recorded marginals of its depth (other drafters' trees).
    """
    log_probs = temper(one.log_probs, temperatures[:one.log_probs.shape[1]])
    score, tree = np.ones(len(one)), one.tree
    has_tree = np.zeros(len(one), bool)
    has_tree[tree.row] = True
    known = tree.rank >= 0
    own = np.full(len(tree.row), np.nan)
    own[known] = log_probs[tree.row[known], tree.depth[known] - 1, tree.rank[known]]
    first = np.searchsorted(tree.row, tree.row)           # the step's node 1 in these columns
    above = first + tree.parent - 1
    path = own.copy()
    for depth in range(2, int(tree.depth.max(initial=1)) + 1):
        here = np.flatnonzero(tree.depth == depth)
        path[here] = own[here] + path[above[here]]
    score += np.bincount(tree.row, np.exp(path), minlength=len(one))
    return np.where(has_tree, score, np.nan)


def grown(one: RunEvidence, row: int, log_probs: np.ndarray) -> DraftTree:
    """The tree of step `row` over log_probs [D, K], under the step's own budget. Token ids of the tree are ranks."""
    kept = np.isfinite(log_probs).any(0)
    log_probs = log_probs[:, kept]
    marginals = DraftMarginals(np.broadcast_to(np.arange(log_probs.shape[1]), log_probs.shape), log_probs)
    if one.growth.kind[row] == "fixed":
        return grow_best_first(marginals, -1, FixedBudget(int(one.nodes[row])))
    table = one.growth.verify_seconds[row]
    table = table[np.isfinite(table)]
    last = table[-1] - table[-2] if len(table) > 1 else 0.0

    def seconds(nodes: np.ndarray) -> np.ndarray:
        # The rule asks in blocks, past the end of the table; sizes there are never bought.
        return np.where(nodes <= len(table), table[np.minimum(nodes, len(table)) - 1], table[-1] + last * (nodes - len(table)))

    budget = AdaptiveBudget(seconds, float(one.growth.fixed_seconds[row]), 0.0, min(one.growth.min_nodes, len(table)), most_nodes(one, row))
    return grow_best_first(marginals, -1, budget)


def most_nodes(one: RunEvidence, row: int) -> int:
    """The largest tree that step `row` may regrow to: the run's own bound, and as far as times were predicted."""
    predicted = int(np.isfinite(one.growth.verify_seconds[row]).sum())
    return predicted if one.growth.max_nodes is None else min(predicted, one.growth.max_nodes)


def reproduced(one: RunEvidence, row: int) -> bool:
    """Whether growing again from the recorded marginals gives the recorded tree, node for node, in order."""
    if not one.growth.kind[row] or not one.log_probs.size:
        return False
    if one.growth.kind[row] == "adaptive" and most_nodes(one, row) < max(1, one.growth.min_nodes):
        return False
    tree, again = one.tree, grown(one, row, one.log_probs[row])
    mine = slice(*np.searchsorted(tree.row, [row, row + 1]))
    return (np.array_equal(again.token_ids[1:], tree.rank[mine]) and np.array_equal(again.parents[1:], tree.parent[mine])
            and again.nodes == one.nodes[row])


def regrow(one: RunEvidence, temperatures: np.ndarray, rows: np.ndarray) -> Regrowth:
    """Grow the trees of steps `rows` (int64) again under tempered marginals, each under its own budget.

    Trees that best-first growth did not make are passed over. A step whose recorded tree does not come
    back at temperature 1 would prove nothing at another: it is left out and counted.
    """
    rows = np.array([row for row in rows if one.growth.kind[row] and one.log_probs.size], np.int64)
    faithful = np.array([row for row in rows if reproduced(one, row)], np.int64)
    log_probs = temper(one.log_probs[faithful], temperatures[:one.log_probs.shape[1]])
    trees = [grown(one, row, log_probs[place]) for place, row in enumerate(faithful)]
    before, after = one.nodes[faithful], np.array([tree.nodes for tree in trees], np.int64)
    held = np.array([known_held(tree, one.known[row]) for tree, row in zip(trees, faithful)], np.int64)
    walked = one.walked[faithful]
    capped = np.array([tree.stop_reason == "max nodes" and one.growth.max_nodes != tree.nodes for tree in trees], bool)
    return Regrowth(faithful, one.growth.kind[faithful] == "adaptive", before, after, walked, held + 1, np.minimum(held, walked - 1),
                    _seconds(one, faithful, before), _seconds(one, faithful, after), capped, len(rows) - len(faithful))


def known_held(tree: DraftTree, known: np.ndarray) -> int:
    """Tokens of the target's known continuation (ranks by depth, [D]) that the tree holds along one path from its root."""
    node = held = 0
    for rank in known:
        below = np.flatnonzero((tree.parents == node) & (tree.token_ids == rank)) if rank >= 0 else ()
        if not len(below):
            break
        node, held = int(below[0]), held + 1
    return held


def _seconds(one: RunEvidence, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Predicted step time of `nodes` nodes, float64; NaN where the run predicted none for that size."""
    table = one.growth.verify_seconds
    if not table.shape[1] or not len(rows):
        return np.full(len(rows), np.nan)
    inside = nodes <= table.shape[1]
    return np.where(inside, table[rows, np.minimum(nodes, table.shape[1]) - 1] + one.growth.fixed_seconds[rows], np.nan)
