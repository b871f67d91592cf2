"""What predicts verify seconds, and the registry a new way to predict joins with one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bastion.errors import UserError
from bastion.latency.roofline import Count, raw_roofline

if TYPE_CHECKING:
    from bastion.latency.calibration import Calibration


class Estimator(Protocol):
    """Anything that predicts verify seconds; takes scalars or arrays and returns the same kind."""

    def seconds(self, nodes: Count, context: Count) -> float | np.ndarray: ...


ESTIMATORS: dict[str, Callable[[Calibration], Estimator]] = {
    "roofline": lambda calibration: calibration.roofline,
    "raw": lambda calibration: raw_roofline(
        calibration.shape, calibration.peaks, calibration.roofline.bytes_per_value
    ),
}
"""Name -> builder from a calibration, whose probes a builder may fit to."""


def build_estimator(name: str, calibration: Calibration) -> Estimator:
    """The named estimator for a calibrated device; UserError lists the names when there is none."""
    try:
        build = ESTIMATORS[name]
    except KeyError:
        raise UserError(
            f"There is no latency estimator {name!r}: choose one of {', '.join(sorted(ESTIMATORS))}."
        ) from None
    return build(calibration)
