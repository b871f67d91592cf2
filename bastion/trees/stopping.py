"""Where best-first growth stops: the plain rule, and looking past a node that does not pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import numpy as np

from bastion.trees.budgets import Budget, StopRule

LOOKS = (16, 64, 1024, 8192)
"""How many paths are found until the rule has stopped; past a few dozen they cost by the search, hardly by the path."""


@dataclass(frozen=True, slots=True)
class Stop:
    """taken: paths that go into the tree; looked_at: paths whose probability the rule has heard, those taken
    among them; reason: why it went no further."""

    taken: int
    looked_at: int
    reason: str


def take_while_worth(costs: Callable[[int], np.ndarray], budget: Budget, rule: StopRule | None) -> Stop:
    """How many of the best paths are worth their price.

    costs: -path log probs of the first so many paths, float64, all of them when there are fewer; asked for
    more only when the rule has not stopped within those. rule: the budget's own, or None.
    """
    most = budget.max_nodes - 1
    if rule is None:
        taken = len(costs(most))
        return Stop(taken, taken, budget.full_reason if taken == most else "exhausted")
    ahead = getattr(budget, "look_past", 0)
    # a stop that looks far ahead comes to hundreds of paths anyway: finding them at once is one search, not three
    wanted = min(most, max(LOOKS[0], budget.min_nodes, 2 * ahead if ahead >= LOOKS[1] else 0))
    while True:
        found = costs(wanted)
        all_there_are = len(found) < wanted or wanted == most
        stop = _stop_among(probabilities_of(found), budget, rule, all_there_are)
        if stop is not None:
            return stop
        if all_there_are:
            return Stop(len(found), len(found), budget.full_reason if len(found) == most else "exhausted")
        wanted = min(most, next((count for count in LOOKS if count > wanted), 4 * wanted))


def probabilities_of(costs: np.ndarray) -> np.ndarray:
    """float64 [P]: exp(-cost), rounded as the scalar function rounds it, whatever numpy was built with."""
    return np.fromiter(map(exp, (-costs).tolist()), dtype=np.float64, count=len(costs))


def surrogates_before(probabilities: np.ndarray) -> np.ndarray:
    """float64 [P + 1]: S(n) at 1, 2, ... nodes, summed in that order."""
    return np.cumsum(np.concatenate(([1.0], probabilities)))


def _stop_among(probabilities: np.ndarray, budget: Budget, rule: StopRule, all_there_are: bool) -> Stop | None:
    """Where the rule stops within these paths; None when it goes past them or would have to look past them."""
    surrogates = surrogates_before(probabilities)
    gains, prices = rule(np.arange(1, len(probabilities) + 1), probabilities, surrogates[:-1])
    refused = np.flatnonzero(~(gains > prices))
    floor, looked_at, look_past = budget.min_nodes, 0, getattr(budget, "look_past", 0)
    while True:
        place = np.searchsorted(refused, floor - 1)
        if place == len(refused):
            return None
        taken = int(refused[place])
        nodes = taken + 1
        reach = min(1 + look_past, budget.max_nodes - nodes)
        ahead = probabilities[taken : taken + reach]
        together = pay_together(rule, nodes, surrogates[taken], ahead) if look_past else 0
        if together:
            floor = nodes + together   # all of these are taken before the rule is asked again
            looked_at = max(looked_at, taken + together)
        elif look_past and len(ahead) < reach and not all_there_are:
            return None
        else:
            return Stop(taken, max(looked_at, taken + (len(ahead) if look_past else 1)), "price")


def pay_together(rule: StopRule, nodes: int, surrogate: float, probabilities: np.ndarray) -> int:
    """The fewest of the next nodes that raise the predicted speed when bought together; 0 when none do.

    j nodes raise S(n) / step time exactly when
    (p_1 + ... + p_j) * (T_draft + T_other + T_verify(n)) > S(n) * (T_verify(n + j) - T_verify(n)).
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    sizes = nodes + np.arange(len(probabilities))
    gains = rule(nodes, np.cumsum(probabilities), surrogate)[0]
    prices = np.cumsum(rule(sizes, probabilities, surrogate)[1])   # S(n) times one step of T_verify each
    pays = np.flatnonzero(gains > prices)
    return int(pays[0]) + 1 if len(pays) else 0
