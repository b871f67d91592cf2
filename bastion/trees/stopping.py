"""Where best-first growth stops: the plain rule, and looking past a node that does not pay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from math import exp

from bastion.trees.budgets import Budget, StopRule

Sides = tuple[float, float]
"""(gain, price) of one pop."""


def take_while_worth(costs: Iterator[float], budget: Budget, rule: StopRule | None) -> tuple[int, list[Sides], str]:
    """How many of the next paths are taken, both sides of the rule for each one asked, why growth stopped.

    costs: -path log probs in best-first order, drawn one by one and no further than they are looked at;
    the one that is refused has been drawn, and so have those looked at behind it. rule: the budget's own;
    without one no sides are kept.
    """
    if rule is None:
        taken = sum(1 for _ in islice(costs, budget.max_nodes - 1))
        return taken, [], budget.full_reason if taken == budget.max_nodes - 1 else "exhausted"
    drawn: list[float] = []   # probabilities of the paths drawn so far
    sides: list[Sides] = []
    surrogate, nodes = 1.0, 1
    floor, max_nodes, look_past = budget.min_nodes, budget.max_nodes, getattr(budget, "look_past", 0)
    while nodes < max_nodes:
        if len(drawn) < nodes:
            cost = next(costs, None)
            if cost is None:
                return nodes - 1, sides, "exhausted"
            drawn.append(exp(-cost))
        probability = drawn[nodes - 1]
        gain, price = side = rule(nodes, probability, surrogate)
        sides.append(side)
        if gain <= price and nodes >= floor:
            coming = islice(_from(nodes - 1, drawn, costs), min(1 + look_past, max_nodes - nodes))
            together = pay_together(rule, nodes, surrogate, coming) if look_past else 0
            if not together:
                return nodes - 1, sides, "price"
            floor = nodes + together   # all of these are taken before the rule is asked again
        surrogate += probability
        nodes += 1
    return nodes - 1, sides, budget.full_reason


def pay_together(rule: StopRule, nodes: int, surrogate: float, probabilities: Iterable[float]) -> int:
    """The fewest of the next nodes that raise the predicted speed when bought together; 0 when none do.

    j nodes raise S(n) / step time exactly when
    (p_1 + ... + p_j) * (T_draft + T_other + T_verify(n)) > S(n) * (T_verify(n + j) - T_verify(n)).
    """
    total = price = 0.0
    for count, probability in enumerate(probabilities, start=1):
        total += probability
        price += rule(nodes + count - 1, probability, surrogate)[1]   # S(n) times one step of T_verify
        if rule(nodes, total, surrogate)[0] > price:
            return count
    return 0


def _from(place: int, drawn: list[float], costs: Iterator[float]) -> Iterator[float]:
    """Probabilities from `place` on; what was not drawn yet is drawn and kept."""
    while True:
        if place == len(drawn):
            cost = next(costs, None)
            if cost is None:
                return
            drawn.append(exp(-cost))
        yield drawn[place]
        place += 1
