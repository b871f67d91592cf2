"""Best-first growth: always the most probable path not yet in the tree."""

from __future__ import annotations

import numpy as np

from bastion.step import GrowthLog
from bastion.trees.budgets import Budget, StopRule
from bastion.trees.draft_tree import DraftTree
from bastion.trees.marginals import DraftMarginals
from bastion.trees.paths import BestPaths, Paths, Ties
from bastion.trees.stopping import probabilities_of, surrogates_before, take_while_worth

PAST_THE_STOP = 64
"""Pops logged after the stop when tracing."""


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
    paths = BestPaths(marginals.log_probs, ties)
    rule = budget.stop_rule()
    stop = take_while_worth(lambda count: paths.first(count).costs, budget, rule)
    nodes = budget.rounded(stop.taken + 1)

    def log() -> GrowthLog:
        refused = rule is not None and stop.reason == "price"
        logged = max(stop.looked_at, stop.taken + refused + PAST_THE_STOP) if trace else stop.looked_at
        return _growth_log(marginals, paths.first(logged), nodes - 1, stop.taken, rule)

    bought = paths.first(nodes - 1)
    return DraftTree(
        token_ids=np.concatenate(([root_token], marginals.token_ids[bought.depths - 1, bought.ranks])),
        parents=np.concatenate(([-1], bought.parents)),
        depths=np.concatenate(([0], bought.depths)),
        path_log_probs=np.concatenate(([0.0], 0.0 - bought.costs)),
        stop_reason=stop.reason,
        grow_log=log,
    )


def _growth_log(marginals: DraftMarginals, paths: Paths, bought: int, passed: int, rule: StopRule | None) -> GrowthLog:
    """The log of `paths`: the first `bought` are in the tree, the first `passed` passed the rule.

    Past the stop both sides go on as if every earlier pop had been bought.
    """
    gains, prices = sides_of(rule, paths.costs)
    numbers = np.arange(len(paths))
    return GrowthLog(
        token_ids=marginals.token_ids[paths.depths - 1, paths.ranks],
        parents=paths.parents,
        depths=paths.depths,
        ranks=paths.ranks,
        path_log_probs=0.0 - paths.costs,
        gains=gains,
        prices=prices,
        bought=numbers < bought,
        dropped=(numbers >= bought) & (numbers < passed),
    )


def sides_of(rule: StopRule | None, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """gains, prices float64 [P] of paths in the order of growth; NaN without a rule."""
    if rule is None:
        return np.full(len(costs), np.nan), np.full(len(costs), np.nan)
    probabilities = probabilities_of(costs)
    return rule(np.arange(1, len(costs) + 1), probabilities, surrogates_before(probabilities)[:-1])
