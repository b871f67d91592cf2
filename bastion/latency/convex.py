"""`convex`: a convex measured cost, the one under which the plain stop rule is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bastion.latency.curves import ContextCurves, Curve, made_curves, seen_points
from bastion.latency.roofline import Count

if TYPE_CHECKING:
    from bastion.latency.calibration import Calibration


@dataclass(frozen=True, slots=True, eq=False)
class ConvexEstimator:
    """Convex regression of the measured seconds over nodes, for each context on its own.

    The least-squares fit among all convex functions that never fall. This is the verification cost of
    CaDDTree (Cost-Aware Diffusion Draft Trees, arXiv 2606.01813), whose abstract states that under a convex
    cost tokens per second have one peak in the budget, so that stopping greedily finds it. As in the
    published code (github.com/ZhangShuai1230/CaDDTree, cost_model.py): straight lines between probed sizes
    and between contexts, the nearest context's curve outside of them, the last slope beyond the largest size.
    Other than there, slopes are taken over the true distances of the probed sizes, where the published code
    compares differences of consecutive probes, which is the same only for evenly spaced ones.
    """

    curves: ContextCurves

    def seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        return self.curves.seconds(nodes, context)


def fit_convex(calibration: Calibration) -> ConvexEstimator:
    """From the probes that were not held out. UserError when there are too few."""
    return ConvexEstimator(made_curves((context, _curve(nodes, convex_regression(nodes, seconds)))
                                       for context, nodes, seconds in seen_points(calibration)))


def convex_regression(nodes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """float64 [K]: the convex, never falling sequence over nodes [K] (ascending) nearest to seconds [K].

    Every such sequence is a constant plus hinges max(0, n - n_i) with weights of 0 or more, one at each size
    but the last: a non-negative least-squares problem, solved exactly. Positive seconds keep the constant
    positive too.
    """
    from scipy.optimize import nnls  # on use: importing it takes longer than reading a calibration

    hinges = np.maximum(0.0, nodes[:, None] - nodes[None, :-1]).astype(np.float64)
    design = np.concatenate([np.ones((len(nodes), 1)), hinges], axis=1)
    scale = np.linalg.norm(design, axis=0)   # columns of like size
    weights, _ = nnls(design / scale, seconds / seconds.mean())
    return design @ (weights / scale) * seconds.mean()


def _curve(nodes: np.ndarray, seconds: np.ndarray) -> Curve:
    return Curve(nodes, seconds, float((seconds[-1] - seconds[-2]) / (nodes[-1] - nodes[-2])))
