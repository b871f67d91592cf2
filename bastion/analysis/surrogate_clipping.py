"""Acceptance lengths, and what the drafter's depth cut off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bastion.analysis.reliability import wilson


@dataclass(frozen=True, slots=True, eq=False)
class Clipping:
    """Steps by acceptance length, and an estimate of the tokens that a deeper drafter would have added.

    The estimate continues each clipped path by the rate seen at the last depth: of the steps that
    stood one short of the drafter's depth, `rate` took the last one too. If every deeper position were
    taken at that rate r, a clipped path would go on for r / (1 - r) tokens on average. r counts what
    the tree held, not only what the drafter ranked first; agreement falls with depth, so this leans high.
    """

    length: np.ndarray      # int64, 1..L
    ended: np.ndarray       # int64, steps of that length that ended before the drafter's depth
    clipped: np.ndarray     # int64, steps of that length that went as deep as the drafter drafts
    steps: int
    tokens: int             # emitted by all steps
    reached: int            # steps whose accepted path is at least the drafter's depth less one
    rate: float             # clipped / reached; NaN when none reached
    stranded: tuple[float, float, float]  # tokens, estimated: value, low, high (Wilson 95 % of the rate); NaN unknown, inf unbounded

    @property
    def clipped_steps(self) -> int:
        return int(self.clipped.sum())

    @property
    def tau(self) -> float | None:
        return self.tokens / self.steps if self.steps else None

    @property
    def deeper_tau(self) -> float | None:
        """tau with the stranded tokens added, estimated; None when there is no estimate."""
        value = self.stranded[0]
        return (self.tokens + value) / self.steps if self.steps and np.isfinite(value) else None


def clipping(frame: pd.DataFrame) -> Clipping:
    """The histogram and the estimate for the rows of `surrogate_table.step_frame`.

    Steps of runs whose drafter's depth is not known count as ended; they do not enter the estimate.
    """
    emitted, clipped = frame["emitted"].to_numpy(np.int64), frame["clipped"].to_numpy(bool)
    depth, walked = frame["drafter_depth"].to_numpy(np.int64), frame["walked"].to_numpy(np.int64)
    longest = max([int(emitted.max(initial=0)), *(int(d) + 1 for d in np.unique(depth) if d > 0)], default=0)
    both = np.bincount(emitted, minlength=longest + 1), np.bincount(emitted[clipped], minlength=longest + 1)
    reached, clipped_steps = int(((depth > 0) & (walked >= depth)).sum()), int(clipped.sum())
    rate = clipped_steps / reached if reached else float("nan")
    low, high = (float(bound) for bound in wilson(np.array(clipped_steps), np.array(reached)))
    return Clipping(np.arange(1, longest + 1), (both[0] - both[1])[1:], both[1][1:], len(frame), int(emitted.sum()), reached, rate,
                    tuple(_continued(clipped_steps, r) for r in (rate, low, high)))


def _continued(steps: int, rate: float) -> float:
    """Expected tokens of `steps` geometric continuations."""
    if np.isnan(rate):
        return float("nan")
    return float("inf") if rate >= 1 else steps * rate / (1 - rate)
