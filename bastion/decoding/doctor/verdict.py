"""Whether a change raised tau, by a paired bootstrap over stretches of neighbouring positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_GAIN = 0.05
"""Tokens a step. A gain counts whose whole interval lies above this."""
LEAST_NATS = 0.01
"""Nats a token: the same for the drafter's log-likelihood of the target's tokens, which sees faults too slight for tau."""
CONFIDENCE = 0.99
"""Two dozen changes are tried on a healthy pair, and none of them should be named by chance."""
REPEATS = 2000


@dataclass(frozen=True, slots=True)
class Gain:
    """tau as loaded and under the change, on the same number of positions; the interval of their difference."""

    before: float
    after: float
    low: float
    high: float
    positions: int

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def clear_tau(self) -> bool:
        return self.low > LEAST_GAIN

    @property
    def clear_likelihood(self) -> bool:
        return self.low > LEAST_NATS

    @property
    def hopeless_tau(self) -> bool:
        return self.high < LEAST_GAIN

    @property
    def hopeless_likelihood(self) -> bool:
        return self.high < LEAST_NATS


def paired(before: Sequence[np.ndarray], after: Sequence[np.ndarray], stretch: int) -> Gain:
    """before, after: emitted tokens at each position of each answer, the same positions. Neighbours share most of
    the text they are judged on, so whole stretches of `stretch` positions are drawn."""
    sums, counts = _stretches([new - old for old, new in zip(before, after, strict=True)], stretch)
    drawn = np.random.default_rng(0).integers(len(sums), size=(REPEATS, len(sums)))
    return _gain(before, after, sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))


def _stretches(values: Sequence[np.ndarray], stretch: int) -> tuple[np.ndarray, np.ndarray]:
    parts = [part[start:start + stretch] for part in values for start in range(0, len(part), stretch)]
    return np.array([part.sum() for part in parts], dtype=np.float64), np.array([len(part) for part in parts])


def _gain(before: Sequence[np.ndarray], after: Sequence[np.ndarray], differences: np.ndarray) -> Gain:
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(differences, (edge, 1 - edge))
    old, new = np.concatenate(before), np.concatenate(after)
    return Gain(float(old.mean()), float(new.mean()), float(low), float(high), len(old))
