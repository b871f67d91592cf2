"""What a job has to tell: an append-only list that a page reads from where it left off."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `at` is in seconds since the log began (monotonic clock)."""

    number: int   # 0, 1, 2, ... in order; the `since` of the next reading is number + 1
    at: float
    kind: str     # "state", "progress", "prompt", "step", "calibration", "yardstick"
    data: Any     # a StepRecord for "step", a dict of plain values otherwise


@dataclass(slots=True)
class EventLog:
    """Events of one job. Written by its worker, read by any number of threads."""

    _events: list[Event] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, data: Any) -> Event:
        with self._lock:
            event = Event(len(self._events), time.monotonic() - self._began, kind, data)
            self._events.append(event)
            return event

    def since(self, number: int) -> list[Event]:
        """Events from `number` on; an empty list when there is nothing new."""
        with self._lock:
            return self._events[max(number, 0):]

    def __len__(self) -> int:
        with self._lock:
            return len(self._events)
