"""Which repeat of a race is replayed, so that all lanes ran in the same minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from bastion.analysis.race import speedups
from bastion.analysis.race_lanes import Lane, yardstick_lane
from bastion.records.totals import tokens_per_second


def nearest_repeat(lanes: Sequence[Lane]) -> int | None:
    """The repeat whose speedups are nearest to each lane's median, the earlier of two; None without a run.

    Near is the least sum over the lanes of |log(speedup / median speedup)|; where no speedup is known tokens/s
    stand in. Only repeats that the most lanes have whole are looked at, then those that the most lanes have begun.
    """
    figures = [_figures(lane, lanes) for lane in lanes]
    middles = [median(found.values()) if found else None for found in figures]
    ranked = []
    for repeat in sorted({repeat for lane in lanes for repeat in lane.repeats}):
        away = sum(abs(math.log(found[repeat] / middle)) for found, middle in zip(figures, middles, strict=True)
                   if middle and found.get(repeat))
        whole = sum(repeat in lane.whole.repeats for lane in lanes)
        begun = sum(bool((run := lane.run(repeat)) and run.steps) for lane in lanes)
        ranked.append((-whole, -begun, round(away, 9), repeat))
    return min(ranked)[-1] if ranked else None


def repeat_speedups(lanes: Sequence[Lane], repeat: int) -> dict[str, float]:
    """Each lane's speedup over plain decoding in one repeat, by label, plain decoding's own left out."""
    plain = yardstick_lane([lane.whole for lane in lanes])
    found = {lane.label: _speedup(lane, plain, repeat) for lane in lanes if plain is None or lane.label != plain.label}
    return {label: value for label, value in found.items() if value is not None}


def _figures(lane: Lane, lanes: Sequence[Lane]) -> Mapping[int, float]:
    """What a lane's repeats are measured by: speedups, and tokens/s where one of them has no speedup."""
    plain, whole = yardstick_lane([lane.whole for lane in lanes]), lane.whole
    by_speedup = {repeat: _speedup(lane, plain, repeat) for repeat in whole.repeats}
    if None not in by_speedup.values() and (plain is None or lane.label != plain.label):
        return {repeat: value for repeat, value in by_speedup.items() if value}
    if plain is not None:
        return {}   # plain decoding is 1 in every repeat
    speeds = {repeat: tokens_per_second(run.steps) for run, repeat in zip(whole.runs, whole.repeats, strict=True)}
    return {repeat: value for repeat, value in speeds.items() if value}


def _speedup(lane: Lane, plain: Lane | None, repeat: int) -> float | None:
    whole = lane.whole
    if repeat not in whole.repeats:
        return None
    found, _ = speedups(Lane(lane.label, lane.method, (whole.run(repeat),), (repeat,)), plain)
    return found[0] if found else None
