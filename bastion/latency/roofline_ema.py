"""`roofline-ema`: the calibrated roofline, times how far the last steps were off."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bastion.latency.ema import RATE
from bastion.latency.roofline import CalibratedRoofline, Count

if TYPE_CHECKING:
    from bastion.latency.calibration import Calibration


@dataclass(slots=True, eq=False)
class DriftingRoofline:
    """seconds = drift * roofline; drift is 1 as a decode begins and follows measured over predicted.

    After a step that took r times what the roofline says, drift becomes drift**(1 - RATE) * r**RATE: an
    exponential moving average of the logarithm, so that twice too slow and twice too fast weigh alike. All
    sizes and contexts share it: a machine that has become slower is slower for every tree. Only verify time
    is corrected, not the drafter's. Built anew for every decode.
    """

    roofline: CalibratedRoofline
    drift: float = 1.0
    rate: float = RATE

    def seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        return self.drift * self.roofline.seconds(nodes, context)

    def observe(self, nodes: int, context: int, seconds: float) -> None:
        """A step verified `nodes` nodes in `seconds`. A time that is no number above 0 says nothing."""
        expected = float(self.roofline.seconds(nodes, context))
        if math.isfinite(seconds) and seconds > 0 and expected > 0:
            self.drift *= (seconds / expected / self.drift) ** self.rate


def start_roofline_ema(calibration: Calibration) -> DriftingRoofline:
    """As a decode begins."""
    return DriftingRoofline(calibration.roofline)
