"""`ema`: what verifying cost at this size lately, and nothing of the device's or the model's arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bastion.latency.curves import Curve, seen_points
from bastion.latency.roofline import Count
from bastion.latency.table import rising

if TYPE_CHECKING:
    from bastion.latency.calibration import Calibration

RATE = 0.2
"""Weight of the newest step; one of k steps ago has 0.2 * 0.8**k."""


@dataclass(slots=True, eq=False)
class EmaEstimator:
    """An exponential moving average of measured verify seconds at each probed size, learned while decoding.

    It starts from the probes' mean at each size, over all contexts (pooled where more nodes were measured to
    take less: sizes are probed at different contexts). Between sizes it is a straight line. An observation of
    m seconds at n nodes moves the prediction there to (1 - RATE) * prediction + RATE * m; the two probed sizes
    around n share the change by their nearness. More nodes never take less: sizes on the wrong side of what
    was just observed are brought to it, and no other size hears of it. Context is not looked at: it grows
    slowly within a decode, and the average follows. Built anew for every decode.
    """

    nodes: np.ndarray     # int64 [K], ascending: the sizes probed
    values: np.ndarray    # float64 [K], seconds; what observations change
    rate: float = RATE

    def seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        """The straight line between the averages; beyond the largest size in proportion to it."""
        slope = float(self.values[-1] / self.nodes[-1])
        found = Curve(self.nodes, self.values, slope).at(np.asarray(nodes)) + np.zeros(np.shape(context))
        return found if found.ndim else float(found)

    def observe(self, nodes: int, context: int, seconds: float) -> None:
        """A step verified `nodes` nodes in `seconds`. A time that is no number above 0 says nothing."""
        if not (math.isfinite(seconds) and seconds > 0):
            return
        last = int(self.nodes[-1])
        if nodes > last:
            nodes, seconds = last, seconds * last / nodes
        expected = self.seconds(nodes, context)
        aim = expected + self.rate * (seconds - expected)
        place = float(np.interp(nodes, self.nodes, np.arange(len(self.nodes))))
        below, above = math.floor(place), math.ceil(place)
        share = place - below
        values = self.values.copy()   # a budget made before keeps its times
        if share:
            change = (aim - expected) / (share**2 + (1.0 - share) ** 2)
            values[below] += change * (1.0 - share)
            values[above] += change * share
        if not share or not 0 < values[below] <= values[above]:
            values[below] = values[above] = aim
        values[:below] = np.minimum(values[:below], values[below])
        values[above + 1 :] = np.maximum(values[above + 1 :], values[above])
        self.values = values


def start_ema(calibration: Calibration) -> EmaEstimator:
    """As a decode begins, from the probes that were not held out. UserError when there are too few."""
    times: dict[int, list[float]] = {}
    for _, sizes, seconds in seen_points(calibration):
        for size, value in zip(sizes.tolist(), seconds.tolist(), strict=True):
            times.setdefault(size, []).append(value)
    nodes = np.array(sorted(times), dtype=np.int64)
    means = np.array([np.mean(times[size]) for size in nodes.tolist()])
    return EmaEstimator(nodes, rising(means, np.array([len(times[size]) for size in nodes.tolist()], dtype=np.float64)))
