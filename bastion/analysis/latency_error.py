"""What verifying was predicted to cost beside what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bastion.records.totals import decode_steps
from bastion.step import StepRecord


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """One row per decode step that has a prediction (arrays [s]); seconds."""

    step: np.ndarray       # int64
    nodes: np.ndarray      # int64, n verified
    context: np.ndarray    # int64, c: tokens cached before the root
    predicted: np.ndarray  # float64, T_verify(n, c)
    measured: np.ndarray   # float64

    @property
    def rmse(self) -> float | None:
        """Root mean square error in seconds; None without rows."""
        if not len(self.step):
            return None
        return float(np.sqrt(np.mean((self.predicted - self.measured) ** 2)))

    @property
    def relative_bias(self) -> float | None:
        """Sum of predicted over sum of measured, less 1: above 0 when the model asks too much."""
        total = self.measured.sum()
        return float(self.predicted.sum() / total - 1) if total > 0 else None


def latency_table(steps: Sequence[StepRecord]) -> LatencyTable:
    """Predicted and measured verify seconds of every decode step with a prediction."""
    rows = [step for step in decode_steps(steps) if step.predicted_verify_seconds is not None]
    return LatencyTable(
        np.array([step.index for step in rows], np.int64),
        np.array([step.nodes for step in rows], np.int64),
        np.array([step.context for step in rows], np.int64),
        np.array([step.predicted_verify_seconds for step in rows], np.float64),
        np.array([step.seconds.verify for step in rows], np.float64))
