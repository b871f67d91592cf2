"""How far each latency estimator is off, on the probes that no fit has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bastion.errors import UserError
from bastion.latency import ESTIMATORS, Calibration, Crossover, Estimator, build_estimator, crossover, held_out_rmse
from bastion.latency.buckets import Stair

PUBLISHED_REDUCTION = (0.87, 0.92)
"""RMSE that calibration took off the raw roofline, as BASTION reports it (arXiv 2605.29727)."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """One estimator at every probe (arrays [p], in the order of `calibration.probes`); seconds."""

    estimator: str
    nodes: np.ndarray      # int64
    context: np.ndarray    # int64
    measured: np.ndarray   # float64
    predicted: np.ndarray  # float64
    held_out: np.ndarray   # bool: the fit did not see it

    @property
    def residual(self) -> np.ndarray:
        """float64 [p], predicted less measured: above 0 where the estimator asks too much."""
        return self.predicted - self.measured


@dataclass(frozen=True, slots=True)
class EstimatorError:
    """Root mean square error in seconds over held-out probes; None where none was held out."""

    estimator: str
    rmse: float | None
    by_context: dict[int, float | None]   # every probed context


def built(calibration: Calibration) -> dict[str, Estimator]:
    """The estimators of the registry, by name; one that cannot be built from these probes is left out."""
    found = {}
    for name in ESTIMATORS:
        try:
            found[name] = build_estimator(name, calibration)
        except UserError:
            continue
    return found


def residuals(calibration: Calibration) -> list[Residuals]:
    """One row of arrays for each estimator that can be built."""
    nodes, context, measured = _columns(calibration)
    held_out = np.array(calibration.held_out, dtype=bool)
    return [Residuals(name, nodes, context, measured, np.asarray(estimator.seconds(nodes, context)), held_out)
            for name, estimator in built(calibration).items()]


def estimator_errors(calibration: Calibration, among: Sequence[int] | None = None) -> list[EstimatorError]:
    """Held-out errors of each estimator that can be built, over all contexts (or those in `among`) and at each."""
    held_out = np.array(calibration.held_out, dtype=bool)
    contexts = np.array([context for _, context, _ in calibration.probes], dtype=np.int64)
    if among is not None:
        held_out &= np.isin(contexts, list(among))

    def rmse(estimator: Estimator, chosen: np.ndarray) -> float | None:
        return held_out_rmse(estimator, calibration.probes, chosen) if chosen.any() else None

    return [EstimatorError(name, rmse(estimator, held_out),
                           {context: rmse(estimator, held_out & (contexts == context)) for context in calibration.contexts})
            for name, estimator in built(calibration).items()]


def reduction(raw: float | None, calibrated: float | None) -> float | None:
    """Share of the raw error that the calibration took away; below 0 when it made it worse."""
    return 1 - calibrated / raw if raw and calibrated is not None else None


def crossovers(calibration: Calibration, name: str = "roofline") -> list[Crossover]:
    """Where compute overtakes memory at each probed context, within what was probed; for a roofline.

    Sizes are those that are computed: of a device that pads trees to buckets, the line below the stair.
    """
    estimator = build_estimator(name, calibration)
    line = estimator.bucketed if isinstance(estimator, Stair) else estimator
    return [crossover(line, context, calibration.max_probed_nodes) for context in calibration.contexts]


def summary(calibration: Calibration) -> dict[str, Any]:
    """Plain values for a command's JSON: errors of each estimator, the reduction, both crossovers. Seconds."""
    errors = {error.estimator: error for error in estimator_errors(calibration)}
    return {
        "estimators": {name: {"held_out_rmse": error.rmse, "by_context": {str(c): v for c, v in error.by_context.items()}}
                       for name, error in errors.items()},
        "rmse_reduction": reduction(errors["raw"].rmse, errors["roofline"].rmse),
        "crossover": {name: {str(at.context): {"nodes": at.nodes, "compute_from_first": at.from_first} for at in crossovers(calibration, name)}
                      for name in ("roofline", "raw")},
    }


def _columns(calibration: Calibration) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nodes, context, seconds = zip(*calibration.probes, strict=True) if calibration.probes else ((), (), ())
    return np.array(nodes, np.int64), np.array(context, np.int64), np.array(seconds, np.float64)
