"""Sizes that a forward of fixed shapes comes in, and what predicting its time makes of them.

A CUDA graph replays kernels of fixed shapes, so a tree of n nodes is padded to the next size that was
captured and costs what that size costs: verify time is a stair, flat up to a bucket's size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bastion.latency.roofline import Count

DOUBLING_TO = 64
"""Up to here sizes double; above, every doubling has one size half way, since padding costs arithmetic there."""
LOOK_PAST_AT_MOST = 256


def bucket_of(nodes: int) -> int:
    """The least bucket that holds `nodes`: 1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, ..."""
    size = 1 << max(nodes - 1, 0).bit_length()
    between = size // 4 * 3
    return between if size > DOUBLING_TO and nodes <= between else size


def buckets_to(nodes: int) -> tuple[int, ...]:
    """All buckets up to the one that holds `nodes`, ascending."""
    found = [1]
    while found[-1] < nodes:
        found.append(bucket_of(found[-1] + 1))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Stair:
    """An estimator of times at bucket sizes, asked about any size: n nodes cost what their bucket costs.

    Nodes within a bucket are free, and the first of the next one pays for all of it, so the stop looks past
    it as far as that bucket reaches (`look_past`).
    """

    bucketed: object
    """What predicts at bucket sizes: any estimator of `bastion.latency`."""
    buckets: tuple[int, ...]
    """Ascending; larger sizes go on as `bucket_of`."""

    @property
    def look_past(self) -> int:
        return min(int(max(np.diff(self.buckets, prepend=0))), LOOK_PAST_AT_MOST)

    def seconds(self, nodes: Count, context: Count) -> float | np.ndarray:
        padded = self.padded(nodes)
        if not isinstance(padded, np.ndarray) or np.ndim(context):
            return self.bucketed.seconds(padded, context)
        sizes, place = np.unique(padded, return_inverse=True)  # few, whatever was asked about
        return np.broadcast_to(self.bucketed.seconds(sizes, context), sizes.shape)[place.reshape(padded.shape)]

    def padded(self, nodes: Count) -> Count:
        """The size verified for `nodes`; int for int, int64 array for array."""
        sizes = np.asarray(nodes, dtype=np.int64)
        place = np.searchsorted(self.buckets, sizes)
        within = np.asarray(self.buckets, dtype=np.int64)[np.minimum(place, len(self.buckets) - 1)]
        beyond = place == len(self.buckets)
        if beyond.any():
            further = np.array(buckets_to(int(sizes.max())), dtype=np.int64)
            within = np.where(beyond, further[np.searchsorted(further, np.maximum(sizes, 1))], within)
        return int(within) if sizes.ndim == 0 else within


class LearningStair(Stair):
    """The same of an estimator that learns from the steps of a decode."""

    def observe(self, nodes: int, context: int, seconds: float) -> None:
        self.bucketed.observe(self.padded(nodes), context, seconds)


def stair(bucketed: object, buckets: tuple[int, ...]) -> Stair:
    return (LearningStair if hasattr(bucketed, "observe") else Stair)(bucketed, tuple(buckets))
