"""Best-first growth as a textbook has it: one path popped from a heap, one look at the stop rule, and so on.

The reference for the growth that works with arrays; slow, and short enough to be checked by reading.
"""

from __future__ import annotations

from itertools import islice
from math import exp

import numpy as np

from bastion.step import GrowthLog
from bastion.trees import Budget, DraftMarginals, DraftTree
from bastion.trees.paths import best_first_pops

PAST_THE_STOP = 64


def grow_by_heap(marginals: DraftMarginals, root_token: int, budget: Budget, trace: bool = False, ties: str = "creation") -> DraftTree:
    pops, popped = best_first_pops(marginals.log_probs, ties), []
    rule = budget.stop_rule()
    taken, reason = taken_one_by_one(pops, popped, budget, rule)
    nodes = budget.rounded(taken + 1)
    if trace:
        refused = rule is not None and reason == "price"
        popped += islice(pops, max(0, taken + refused + PAST_THE_STOP - len(popped)))
    costs, _, parents, depths, ranks, _ = np.array([(*p[:1], 0, *p[2:]) for p in popped], dtype=np.float64).reshape(-1, 6).T
    parents, depths, ranks = (column.astype(np.int64) for column in (parents, depths, ranks))
    sides, surrogate = [], 1.0
    for place, cost in enumerate(costs.tolist()):
        sides.append(rule(place + 1, exp(-cost), surrogate) if rule else (np.nan, np.nan))
        surrogate += exp(-cost)
    gains, prices = np.array(sides, dtype=np.float64).reshape(-1, 2).T
    numbers = np.arange(len(popped))
    tokens = marginals.token_ids[depths - 1, ranks]
    log = GrowthLog(tokens, parents, depths, ranks, -costs, gains, prices, numbers < nodes - 1, (numbers >= nodes - 1) & (numbers < taken))
    bought = slice(nodes - 1)
    return DraftTree(np.concatenate(([root_token], tokens[bought])), np.concatenate(([-1], parents[bought])),
                     np.concatenate(([0], depths[bought])), np.concatenate(([0.0], -costs[bought])), reason, lambda: log)


def taken_one_by_one(pops, popped: list, budget: Budget, rule) -> tuple[int, str]:
    """How many paths the rule takes, and why no more; those drawn are left in `popped`."""
    def drawn(place: int) -> bool:
        popped.extend(islice(pops, max(0, place + 1 - len(popped))))
        return place < len(popped)

    surrogate, nodes, floor = 1.0, 1, budget.min_nodes
    while nodes < budget.max_nodes:
        if not drawn(nodes - 1):
            return nodes - 1, "exhausted"
        probability = exp(-popped[nodes - 1][0])
        if rule is not None and nodes >= floor:
            gain, price = rule(nodes, probability, surrogate)
            if gain <= price:
                together = total = cost = 0.0
                for ahead in range(min(1 + budget.look_past, budget.max_nodes - nodes) if budget.look_past else 0):
                    if not drawn(nodes - 1 + ahead):
                        break
                    total += exp(-popped[nodes - 1 + ahead][0])
                    cost += rule(nodes + ahead, 0.0, surrogate)[1]
                    if rule(nodes, total, surrogate)[0] > cost:
                        together = ahead + 1
                        break
                if not together:
                    return nodes - 1, "price"
                floor = nodes + together
        surrogate += probability
        nodes += 1
    return nodes - 1, budget.full_reason
