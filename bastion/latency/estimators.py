"""What predicts verify seconds, and the registry a new way to predict joins with one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from bastion.errors import UserError
from bastion.latency.buckets import stair
from bastion.latency.convex import fit_convex
from bastion.latency.ema import start_ema
from bastion.latency.roofline import Count, raw_roofline
from bastion.latency.roofline_ema import start_roofline_ema
from bastion.latency.table import fit_table

if TYPE_CHECKING:
    from bastion.latency.calibration import Calibration


class Estimator(Protocol):
    """Anything that predicts verify seconds; takes scalars or arrays and returns the same kind.

    One whose cost has steps may say `look_past`, the nodes that the stop looks past one that does not pay.
    """

    def seconds(self, nodes: Count, context: Count) -> float | np.ndarray: ...


@runtime_checkable
class OnlineEstimator(Estimator, Protocol):
    """One that learns from the steps of a decode; every decode builds its own, so that the same times give the
    same predictions."""

    def observe(self, nodes: int, context: int, seconds: float) -> None:
        """Verifying `nodes` nodes after `context` tokens took `seconds`."""


ESTIMATORS: dict[str, Callable[[Calibration], Estimator]] = {
    "roofline": lambda calibration: calibration.roofline,
    "raw": lambda calibration: raw_roofline(
        calibration.shape, calibration.peaks, calibration.roofline.bytes_per_value
    ),
    "roofline-ema": start_roofline_ema,
    "ema": start_ema,
    "table": fit_table,
    "convex": fit_convex,
}
"""Name -> builder from a calibration, whose probes a builder may fit to."""


def build_estimator(name: str, calibration: Calibration) -> Estimator:
    """The named estimator for a calibrated device, a stair where forwards come in buckets; UserError lists the names when there is none."""
    found = ESTIMATORS[check_estimator(name)](calibration)
    return stair(found, calibration.buckets) if calibration.buckets else found


def check_estimator(name: str) -> str:
    """The name itself; UserError lists the names when there is no such estimator."""
    if name not in ESTIMATORS:
        raise UserError(f"There is no latency estimator {name!r}: choose one of {', '.join(sorted(ESTIMATORS))}.")
    return name
