"""What looking past a step of the cost would have bought: recorded growth, stopped again by both rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bastion.latency import Calibration, Estimator
from bastion.step import GrowthLog, StepRecord
from bastion.trees import AdaptiveBudget
from bastion.trees.stopping import take_while_worth


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """One row per step that has a growth log (arrays [s]). `plain`: the published rule; `ahead`: looking past.

    All of it is predicted: S(n) by the drafter, times by the estimator.
    """

    step: np.ndarray             # int64, the step's index
    plain_nodes: np.ndarray      # int64, root included
    ahead_nodes: np.ndarray
    plain_surrogate: np.ndarray  # float64, S(n)
    ahead_surrogate: np.ndarray
    plain_seconds: np.ndarray    # float64, step time
    ahead_seconds: np.ndarray

    def __len__(self) -> int:
        return len(self.step)

    @property
    def gain(self) -> np.ndarray:
        """float64 [s]: predicted tokens per second when looking past, over those of the plain rule; never below 1."""
        return self.ahead_surrogate / self.ahead_seconds / (self.plain_surrogate / self.plain_seconds)


def replay(steps: Iterable[StepRecord], calibration: Calibration, latency: Estimator, look_past: int) -> Replay:
    """Both rules over the recorded pops of each step, its context's times taken from `latency`.

    Sizes past the log are not known: no tree is larger than it, nor than the calibration has timed.
    """
    rows = []
    for step in steps:
        log = step.trace.growth if step.trace is not None else None
        if log is None or not step.nodes:
            continue
        most = min(len(log) + 1, calibration.max_probed_nodes)
        surrogate = 1.0 + np.concatenate(([0.0], np.cumsum(np.exp(log.path_log_probs))))
        row = [step.index]
        for far in (0, look_past):
            nodes = _stopped_at(log, step.context, calibration, latency, most, far)
            seconds = calibration.draft_seconds + calibration.other_seconds + float(latency.seconds(nodes, step.context))
            row += [nodes, surrogate[nodes - 1], seconds]
        rows.append(row)
    step, plain, plain_s, plain_t, ahead, ahead_s, ahead_t = np.array(rows, dtype=np.float64).reshape(-1, 7).T
    return Replay(step.astype(np.int64), plain.astype(np.int64), ahead.astype(np.int64), plain_s, ahead_s, plain_t, ahead_t)


def _stopped_at(log: GrowthLog, context: int, calibration: Calibration, latency: Estimator, most: int, look_past: int) -> int:
    budget = AdaptiveBudget(lambda nodes: latency.seconds(nodes, context), calibration.draft_seconds, calibration.other_seconds,
                            max_nodes=most, look_past=look_past)
    return take_while_worth(lambda count: -log.path_log_probs[:count], budget, budget.stop_rule()).taken + 1
