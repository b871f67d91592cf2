"""`table`: the measured times themselves, made to never fall as nodes are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bastion.latency.curves import ContextCurves, Curve, made_curves, seen_points
from bastion.latency.roofline import Count

if TYPE_CHECKING:
    from bastion.latency.calibration import Calibration

LOOK_PAST = 32
"""How far the stop looks past a node that does not pay: more than the nodes of one of a kernel's tiles (16 or 32)."""


@dataclass(frozen=True, slots=True, eq=False)
class TableEstimator:
    """Isotonic regression of the measured seconds over nodes, for each context on its own.

    The least-squares fit among all sequences that never fall (pool adjacent violators): where a probe lies
    below one of fewer nodes, both take their mean. No form is assumed, so that steps of the device stay
    steps; the stop looks past them (`look_past`). Straight lines between probed sizes and between contexts;
    beyond the largest size it rises as it did over the upper half of the sizes.
    """

    curves: ContextCurves
    look_past: int = LOOK_PAST

    def seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        return self.curves.seconds(nodes, context)


def fit_table(calibration: Calibration) -> TableEstimator:
    """From the probes that were not held out. UserError when there are too few."""
    return TableEstimator(made_curves((context, Curve(nodes, rising(seconds), _upper_slope(nodes, rising(seconds))))
                                      for context, nodes, seconds in seen_points(calibration)))


def rising(seconds: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The isotonic regression of seconds [K], float64 [K]."""
    from scipy.optimize import isotonic_regression  # on use: importing it takes longer than reading a calibration

    return np.asarray(isotonic_regression(seconds, weights=weights).x, dtype=np.float64)


def _upper_slope(nodes: np.ndarray, seconds: np.ndarray) -> float:
    """Seconds a node from half of the largest size to the largest: the last two sizes alone may have been pooled."""
    half = nodes[-1] / 2
    return float((seconds[-1] - np.interp(half, nodes, seconds)) / (nodes[-1] - max(half, nodes[0])))
