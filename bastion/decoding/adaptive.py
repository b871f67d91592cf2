"""The methods that let the device's latency choose each tree's size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from bastion.latency import Calibration, Estimator, build_estimator, check_estimator
from bastion.trees import AdaptiveBudget, DraftMarginals, DraftTree, Graft, grow_best_first, grow_grafted
from bastion.trees.best_first import PAST_THE_STOP

MARGINALS = 128
"""Tokens kept per depth for best-first growth (the published default)."""


def marginals_for(nodes: int, trace: bool) -> int:
    """Tokens per depth that can matter to `nodes` nodes, and to the pops logged past them when tracing.

    A token goes into the tree after all that are more probable at its depth, so a tree of n nodes
    looks at n - 1 of them at most.
    """
    return max(1, min(nodes - 1 + PAST_THE_STOP * trace, MARGINALS))


@dataclass(frozen=True)
class Bastion:
    """Best-first growth that stops where the device's latency says the next node does not pay.

    `max_nodes_bound` None means the largest tree the calibration has timed. Without a calibration
    `decode` finds or makes one (`calibrated`). estimator: the name of what predicts verify times
    (`bastion.latency.ESTIMATORS`); latency: the one built for this decode, which may learn as it goes.
    look_past None means as far as the estimator asks for: 0, the published rule, unless its cost has steps.
    """

    calibration: Calibration | None = None
    min_nodes: int = 1
    max_nodes_bound: int | None = None
    bucket: int | Literal["doubling"] = 1
    name: str = "bastion"
    drafts: bool = True
    needs_calibration: bool = True
    estimator: str = "roofline"
    look_past: int | None = None
    latency: Estimator | None = None

    def with_estimator(self, name: str) -> Bastion:
        """The same method under another estimator, `bastion@NAME`. UserError lists the names."""
        return replace(self, estimator=check_estimator(name), name=f"{self.name.partition('@')[0]}@{name}", latency=None)

    def marginals(self, trace: bool) -> int:
        return marginals_for(self.max_nodes(0), trace)

    def calibrated(self, calibration: Calibration) -> Bastion:
        """For one decode: with its own calibration, else this one, and an estimator that has observed nothing.
        UserError when the estimator cannot be built from the calibration's probes."""
        calibration = self.calibration or calibration
        return replace(self, calibration=calibration, latency=build_estimator(self.estimator, calibration))

    def max_nodes(self, depth: int) -> int:
        return max(self.min_nodes, self.max_nodes_bound or self.calibration.max_probed_nodes)

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        return grow_best_first(marginals, root, self.budget(context), trace=trace)

    def budget(self, context: int) -> AdaptiveBudget:
        """What the device's latency pays for behind `context` tokens."""
        latency = self.latency or build_estimator(self.estimator, self.calibration)
        return AdaptiveBudget(
            seconds=partial(latency.seconds, context=context),
            draft_seconds=self.calibration.draft_seconds,
            other_seconds=self.calibration.other_seconds,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes(0),
            bucket=self.bucket,
            look_past=getattr(latency, "look_past", 0) if self.look_past is None else self.look_past,
        )


@dataclass(frozen=True)
class GraftedBastion(Bastion):
    """`bastion`, with looked-up continuations as further candidates: one budget buys the best of both."""

    name: str = "bastion+ngram"
    lookup_tokens: int = 12

    def grow_with(self, graft: Graft, marginals: DraftMarginals, root: int, context: int, deepest: int, trace: bool) -> DraftTree:
        return grow_grafted(marginals, graft, root, self.budget(context), deepest, trace)
