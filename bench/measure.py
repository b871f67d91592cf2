"""Medians with their spread, turns, and what machine this is."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, quartiles and number of some values, all in the same unit."""

    median: float
    low: float
    high: float
    count: int

    def json(self) -> dict[str, float]:
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value; the quartiles by linear interpolation."""
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return Spread(float(middle), float(low), float(high), len(values))


def turned(names: Sequence[Any], turn: int) -> list[Any]:
    """The same names beginning with another one, so that none is always first."""
    turn %= max(len(names), 1)
    return [*names[turn:], *names[:turn]]


def time_in_turn(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call: each round calls all of `works`, beginning with another one each time. One
    untimed round comes first."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(-1, rounds):
        for name in turned(list(works), turn):
            begun = perf_counter()
            works[name]()
            if turn >= 0:
                seconds[name].append(perf_counter() - begun)
    return seconds


def machine() -> dict[str, Any]:
    """Processor, cores and versions, as plain values."""
    from importlib import metadata

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(terse=True),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in ("torch", "transformers", "numpy")}},
    }


def last_level_cache_bytes() -> int | None:
    """Size of the processor's largest cache; None where the system does not say."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [file.read_text(encoding="ascii").strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=None)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
