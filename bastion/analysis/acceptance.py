"""What the target kept of the drafter's trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bastion.records.totals import acceptance_lengths, decode_steps
from bastion.step import StepRecord


@dataclass(frozen=True, slots=True)
class SurrogatePairs:
    """The drafter's own estimate beside what came of it, one row per decode step (arrays [s])."""

    step: np.ndarray        # int64, index of the step
    surrogate: np.ndarray   # float64, S(n): expected tokens by the drafter's probabilities
    walked: np.ndarray      # int64, nodes of the accepted path, root included: what S(n) estimates
    emitted: np.ndarray     # int64, tokens added to the output; less than `walked` at a cut end

    @property
    def correlation(self) -> float | None:
        """Pearson's r of surrogate and walked; None when either does not vary."""
        if len(self.step) < 2 or not np.ptp(self.surrogate) or not np.ptp(self.walked):
            return None
        return float(np.corrcoef(self.surrogate, self.walked)[0, 1])


def surrogate_pairs(steps: Sequence[StepRecord]) -> SurrogatePairs:
    """Surrogate and outcome of every decode step.

    A step emits its accepted drafted tokens and the bonus token; that is the number of nodes on
    the accepted path, root included (the bonus stands in for the root).
    """
    rounds = decode_steps(steps)
    return SurrogatePairs(
        np.array([step.index for step in rounds], np.int64),
        np.array([step.surrogate for step in rounds], np.float64),
        np.array([len(step.accepted) for step in rounds], np.int64),
        np.array([len(step.emitted) for step in rounds], np.int64))


def acceptance_histogram(steps: Sequence[StepRecord], longest: int | None = None) -> np.ndarray:
    """Decode steps by acceptance length: int64 [L + 1], entry i counts the steps that emitted i.

    L is `longest` (e.g. the drafter's depth + 1), or the longest seen when that is more.
    """
    lengths = np.array(acceptance_lengths(steps), np.int64)
    return np.bincount(lengths, minlength=(longest or 0) + 1)


def drafter_depth(steps: Sequence[StepRecord]) -> int | None:
    """Positions the drafter proposes (block size - 1), read from the traced marginals; None when no
    step has any (a method without a drafter, or a run without traces)."""
    depths = [len(step.trace.marginal_token_ids) for step in steps if step.trace is not None]
    return max(depths, default=0) or None


def depth_limit_share(steps: Sequence[StepRecord], depth: int | None = None) -> float | None:
    """Share of decode steps whose accepted path went as deep as the drafter drafts.

    There the step may have been cut short by the drafter's block and not by a wrong token; a
    large share says that a larger block would pay. `depth` is the drafter's last depth, by
    default `drafter_depth(steps)`. None without decode steps or without a known depth.
    """
    depth = drafter_depth(steps) if depth is None else depth
    rounds = decode_steps(steps)
    if not rounds or not depth:
        return None
    return sum(len(step.accepted) - 1 >= depth for step in rounds) / len(rounds)
