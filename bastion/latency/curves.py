"""One curve of verify seconds over nodes for each probed context, and what lies between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bastion.errors import UserError
from bastion.latency.roofline import Count

if TYPE_CHECKING:
    from bastion.latency.calibration import Calibration


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Seconds at some sizes: straight lines between them, flat below the least, `slope` seconds a node beyond the most."""

    nodes: np.ndarray     # int64 [K], ascending
    seconds: np.ndarray   # float64 [K]
    slope: float

    def at(self, nodes: np.ndarray) -> np.ndarray:
        """float64, in the shape of `nodes`."""
        beyond = np.maximum(nodes - self.nodes[-1], 0)
        return np.interp(nodes, self.nodes, self.seconds) + self.slope * beyond


@dataclass(frozen=True, slots=True, eq=False)
class ContextCurves:
    """Curves at ascending contexts. Between two contexts the prediction is the straight line between their
    curves; outside of what was probed the nearest context's curve holds."""

    contexts: np.ndarray           # int64 [C]
    curves: tuple[Curve, ...]      # [C]

    def seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        """Predicted verify seconds; scalars or arrays that broadcast."""
        nodes, context = np.asarray(nodes), np.asarray(context)
        place = np.interp(context, self.contexts, np.arange(len(self.contexts)))
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, len(self.curves) - 1)
        share = place - below
        found = np.zeros(np.broadcast_shapes(nodes.shape, context.shape))
        for number in np.union1d(below, above):
            weight = np.where(below == number, 1.0 - share, 0.0) + np.where(above == number, share, 0.0)
            found = found + weight * self.curves[number].at(nodes)
        return found if found.ndim else float(found)


def seen_points(calibration: Calibration) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """(context, nodes int64 [K] ascending, seconds float64 [K]) of the probes that were not held out.

    Repeats of a point count by their median. Contexts with a single size are left out: they say nothing about
    more nodes. UserError when that leaves nothing.
    """
    times: dict[int, dict[int, list[float]]] = {}
    for (nodes, context, seconds), held_out in zip(calibration.probes, calibration.held_out, strict=True):
        if not held_out:
            times.setdefault(context, {}).setdefault(nodes, []).append(seconds)
    points = [(context, np.array(sorted(sizes)), np.array([np.median(sizes[size]) for size in sorted(sizes)]))
              for context, sizes in sorted(times.items()) if len(sizes) > 1]
    if not points:
        raise UserError("Measured times make a curve from two tree sizes on: probe at least two at one context.")
    return points


def made_curves(curves: Iterable[tuple[int, Curve]]) -> ContextCurves:
    """From (context, curve), contexts ascending."""
    contexts, made = zip(*curves, strict=True)
    return ContextCurves(np.array(contexts, dtype=np.int64), made)
