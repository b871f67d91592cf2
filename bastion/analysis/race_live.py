"""Speedups while a race is still being decoded, from what its job knows so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bastion.analysis.race_lanes import YARDSTICK


@dataclass(frozen=True, slots=True)
class LivePoint:
    """Speed of one decode over plain decoding's. Provisional while the decode goes on, or while plain
    decoding of the same repeat is not there and another measurement of it stands in."""

    lane: str
    repeat: int
    speedup: float
    tokens_per_second: float
    provisional: bool


def live_points(done: Sequence[Mapping[str, Any]], now: Mapping[str, Any] | None, warm_up: Mapping[str, Any]) -> list[LivePoint]:
    """One point a decode that has begun. Plain decoding's stand-in is the median of its finished repeats,
    before the first of those its warm-up."""
    plain = {entry["repeat"]: entry["tokens_per_second"] for entry in done
             if entry["method"] == YARDSTICK and entry["tokens_per_second"]}
    stand_in = median(plain.values()) if plain else warm_up.get(YARDSTICK)
    points = []
    for entry in [*done, *([now] if now else [])]:
        speed, against = entry["tokens_per_second"], plain.get(entry["repeat"], stand_in)
        if speed and against:
            points.append(LivePoint(entry["method"], entry["repeat"], speed / against, speed,
                                    entry is now or entry["repeat"] not in plain))
    return points


def axis_end(largest: float, least: float = 3.0) -> float:
    """An end for the axis of speedups that moves seldom: 3, 4.5, 6, 9, 12, ..."""
    end = least
    while largest > end * 0.96:
        end = end * 1.5 if (end / least).is_integer() and int(end / least) & int(end / least) - 1 == 0 else end * 4 / 3
    return end
