"""Whether the drafter means what it says: its recorded marginals against what the target chose.

A depth counts where it was reached: all tokens before it on the path were accepted, so the target's
own token is known there (the accepted one, or the bonus token). The marginal does not know what came
before, while the outcome is only seen where all before it was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bastion.analysis.surrogate_evidence import UNSEEN, RunEvidence

BINS = 15
Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Every reached depth of every traced step (arrays [m]); K is the most ranks any run recorded."""

    row: np.ndarray         # int64, the step's row in `step_frame` of the same runs
    depth: np.ndarray       # int64, from 1
    rank: np.ndarray        # int64, the target's token among the recorded ranks, from 0; -1 outside them
    confidence: np.ndarray  # float64 [m, K], recorded marginals as probabilities; NaN where none was recorded

    def __len__(self) -> int:
        return len(self.row)

    def where(self, keep: np.ndarray) -> Outcomes:
        """Those that bool [m] keeps."""
        return Outcomes(self.row[keep], self.depth[keep], self.rank[keep], self.confidence[keep])

    def at_ranks(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """(confidence, agreed) of ranks first..last-1 counted from 0, flat, where a marginal was recorded."""
        confidence = self.confidence[:, first:last]
        agreed = self.rank[:, None] == np.arange(first, first + confidence.shape[1])
        there = np.isfinite(confidence)
        return confidence[there], agreed[there]


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """Confidence against agreement in bins of equal width (arrays [bins]; NaN in an empty bin)."""

    low: np.ndarray          # float64, lower edge
    high: np.ndarray
    count: np.ndarray        # int64
    confidence: np.ndarray   # float64, mean of the bin
    agreement: np.ndarray    # float64, share of the bin that the target chose
    agreement_low: np.ndarray   # float64, Wilson 95 %
    agreement_high: np.ndarray

    @property
    def total(self) -> int:
        return int(self.count.sum())

    @property
    def error(self) -> float | None:
        """Expected calibration error: mean over all pairs of |agreement - confidence| of their bin; None when empty."""
        return calibration_error(self.count, self.confidence, self.agreement)

    @property
    def mean_confidence(self) -> float | None:
        return _mean(self.count, self.confidence)

    @property
    def mean_agreement(self) -> float | None:
        return _mean(self.count, self.agreement)


def outcomes(evidence: Sequence[RunEvidence]) -> Outcomes:
    """The reached depths of all traced steps, rows counted as `step_frame(evidence)` does."""
    width = max((one.log_probs.shape[2] for one in evidence), default=0)
    rows, depths, ranks, confidence, first = [], [], [], [], 0
    for one in evidence:
        step, depth = np.nonzero(one.known != UNSEEN)
        recorded = one.log_probs[step, depth].astype(np.float64)
        probability = np.full((len(step), width), np.nan)
        probability[:, :recorded.shape[1]] = np.where(np.isneginf(recorded), np.nan, np.exp(recorded))
        rows.append(step + first)
        depths.append(depth + 1)
        ranks.append(one.known[step, depth])
        confidence.append(probability)
        first += len(one)
    if not rows:
        none = np.zeros(0, np.int64)
        return Outcomes(none, none, none, np.zeros((0, 0)))
    return Outcomes(*(np.concatenate(part) for part in (rows, depths, ranks, confidence)))


def reliability(confidence: np.ndarray, agreed: np.ndarray, bins: int = BINS) -> Reliability:
    """Bins of equal width over 0 to 1; a confidence of exactly 1 belongs to the last. Arrays [m]."""
    place = np.clip((np.asarray(confidence) * bins).astype(np.int64), 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    hits = np.bincount(place, np.asarray(agreed, np.float64), minlength=bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(place, confidence, minlength=bins) / count
        share = hits / count
    low, high = wilson(hits, count)
    edges = np.arange(bins + 1) / bins
    return Reliability(edges[:-1], edges[1:], count, mean, share, low, high)


def calibration_error(count: np.ndarray, confidence: np.ndarray, agreement: np.ndarray) -> float | None:
    """Sum over bins of count / total * |agreement - confidence| (expected calibration error, Guo et al. 2017)."""
    held = count > 0
    if not held.any():
        return None
    return float((count[held] * np.abs(agreement[held] - confidence[held])).sum() / count.sum())


def wilson(hits: np.ndarray, count: np.ndarray, z: float = Z95) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's score interval of hits / count; NaN where count is 0."""
    hits, count = np.asarray(hits, np.float64), np.asarray(count, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = hits / count
        centre = (share + z * z / (2 * count)) / (1 + z * z / count)
        half = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return np.maximum(centre - half, 0), np.minimum(centre + half, 1)


def by_depth(seen: Outcomes, ranks: int = 1, bins: int = BINS) -> dict[int, Reliability]:
    """Depth -> reliability of the `ranks` most probable tokens there."""
    return {int(depth): reliability(*seen.where(seen.depth == depth).at_ranks(0, ranks), bins) for depth in np.unique(seen.depth)}


RANK_CLASSES = ((0, 1), (1, 2), (2, 3), (3, 5), (5, 9), (9, 17), (17, 33), (33, 65), (65, 128))


def rank_name(first: int, last: int) -> str:
    """Ranks counted from 1, as they are shown: `1`, `4 to 5`."""
    return f"{first + 1}" if last - first == 1 else f"{first + 1} to {last}"


def by_rank(seen: Outcomes, bins: int = BINS) -> dict[str, Reliability]:
    """Class of ranks -> reliability over all reached depths; classes nobody recorded are left out."""
    tables = {rank_name(first, last): reliability(*seen.at_ranks(first, last), bins) for first, last in RANK_CLASSES}
    return {name: table for name, table in tables.items() if table.total}


def overall(seen: Outcomes, ranks: int | None = None, bins: int = BINS) -> Reliability:
    """All reached depths together; the `ranks` most probable tokens, all recorded ones when None."""
    return reliability(*seen.at_ranks(0, seen.confidence.shape[1] if ranks is None else ranks), bins)


def reliability_frame(tables: dict[object, Reliability], group: str) -> pd.DataFrame:
    """One row per group and bin, empty bins left out."""
    frames = [pd.DataFrame({group: name, "low": t.low, "high": t.high, "count": t.count, "confidence": t.confidence,
                            "agreement": t.agreement, "agreement_low": t.agreement_low, "agreement_high": t.agreement_high})
              for name, t in tables.items()]
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({group: [], "count": []})
    return frame[frame["count"] > 0].reset_index(drop=True)


def outcome_frame(seen: Outcomes, steps: pd.DataFrame, ranks: int | None = None) -> pd.DataFrame:
    """One row per reached depth and rank: run, step, depth, rank (from 1), confidence, agreed."""
    confidence = seen.confidence[:, :ranks]
    there = np.isfinite(confidence)
    place, rank = np.nonzero(there)
    row = seen.row[place]
    return pd.DataFrame({"run": steps["run"].to_numpy()[row], "step": steps["step"].to_numpy()[row], "depth": seen.depth[place],
                         "rank": rank + 1, "confidence": confidence[there], "agreed": seen.rank[place] == rank})


def _mean(count: np.ndarray, values: np.ndarray) -> float | None:
    held = count > 0
    return float((count[held] * values[held]).sum() / count.sum()) if held.any() else None
