"""Pearson's and Spearman's correlation with percentile bootstrap intervals.

The published claim for S(n) against the tokens a step emits is Pearson 0.79 to 0.82 (BASTION, arXiv 2605.29727).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PUBLISHED_PEARSON = (0.79, 0.82)
RESAMPLES = 1000
CLUSTERS = 5
"""What is drawn must be at least so many for an interval: of two, half the draws are one of them twice."""
LEVEL = 0.95
_CELLS = 1_500_000  # weights held at once


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its percentile interval; NaN bounds below `CLUSTERS` clusters or when too few resamples had any spread."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Correlation:
    """Correlation of two columns of `steps` rows, resampled by `clusters` clusters (rows, when each stands alone)."""

    pearson: Estimate
    spearman: Estimate
    steps: int
    clusters: int
    resamples: int

    @property
    def too_few(self) -> bool:
        """Whether there are too few clusters for an interval."""
        return self.clusters < CLUSTERS


def correlate(x: np.ndarray, y: np.ndarray, clusters: np.ndarray | None = None, resamples: int = RESAMPLES,
              seed: int = 0, level: float = LEVEL) -> Correlation | None:
    """Both correlations of x and y [n] as scipy.stats gives them; None under 3 rows or when one does not vary.

    clusters [n] names what is drawn with replacement: all rows of a cluster come along, since rows of
    one run are not independent. Without it rows are drawn one by one. Below `CLUSTERS` there is no interval.
    """
    from scipy.stats import pearsonr, spearmanr

    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        return None
    codes = np.arange(len(x)) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    count = int(codes.max()) + 1
    drawn = bootstrap(x, y, codes, resamples, seed)
    tail = 100 * (1 - level) / 2

    def estimate(value: float, draws: np.ndarray) -> Estimate:
        draws = draws[np.isfinite(draws)]
        # A few clusters drawn again and again are always the same data and would feign certainty.
        if count < CLUSTERS or len(draws) < 2:
            return Estimate(float(value), float("nan"), float("nan"))
        return Estimate(float(value), *(float(bound) for bound in np.percentile(draws, [tail, 100 - tail])))

    return Correlation(estimate(pearsonr(x, y).statistic, drawn[0]), estimate(spearmanr(x, y).statistic, drawn[1]),
                       len(x), count, resamples)


def bootstrap(x: np.ndarray, y: np.ndarray, codes: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """float64 [2, resamples]: Pearson and Spearman of each resample; NaN where one has no spread.

    A resample is a weight per row, how often it was drawn. Weighted moments and weighted midranks give
    what the repeated rows would, without repeating them. codes [n]: cluster of each row, 0..C-1.
    """
    rng = np.random.default_rng(seed)
    clusters = int(codes.max()) + 1
    rank_x, rank_y = _Midranks(x), _Midranks(y)
    x, y = x - x.mean(), y - y.mean()
    at_once = max(1, _CELLS // max(len(x), clusters))
    results = []
    for first in range(0, resamples, at_once):
        rows = min(at_once, resamples - first)
        drawn = rng.integers(0, clusters, (rows, clusters)) + clusters * np.arange(rows)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=rows * clusters).reshape(rows, clusters)[:, codes].astype(np.float64)
        shape = np.broadcast_to(x, weights.shape), np.broadcast_to(y, weights.shape)
        results.append([_weighted(weights, *shape), _weighted(weights, rank_x(weights), rank_y(weights))])
    return np.concatenate(results, axis=1)


def _weighted(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's r under each row of weights; arrays [b, n]."""
    total = weights.sum(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        x = x - (weights * x).sum(1, keepdims=True) / total
        y = y - (weights * y).sum(1, keepdims=True) / total
        over = np.einsum("bn,bn,bn->b", weights, x, x) * np.einsum("bn,bn,bn->b", weights, y, y)
        r = np.einsum("bn,bn,bn->b", weights, x, y) / np.sqrt(over)
    return np.where(over > 1e-20, np.clip(r, -1, 1), np.nan)


class _Midranks:
    """Ranks of `values` [n] in a sample that holds row i weights[i] times, equal values sharing their mean rank."""

    def __init__(self, values: np.ndarray) -> None:
        self.order = np.argsort(values, kind="stable")
        distinct, self.group, counts = np.unique(values, return_inverse=True, return_counts=True)
        self.starts = np.concatenate([[0], np.cumsum(counts)[:-1]])

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        held = np.add.reduceat(weights[:, self.order], self.starts, axis=1)
        ranks = np.cumsum(held, axis=1) - (held - 1) / 2
        return ranks[:, self.group]
