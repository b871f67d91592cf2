"""One job and what is known of it: written by its worker, read by pages through `view`."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from bastion.jobs.log import Event, EventLog
from bastion.step import StepRecord

QUEUED, LOADING, CALIBRATING, DECODING = "queued", "loading model", "calibrating", "decoding"
FETCHING = "fetching model"
EXAMINING = "examining"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
FINAL = frozenset({DONE, FAILED, CANCELLED})


class Cancelled(Exception):
    """Raised inside a worker at the first safe point after somebody asked to stop."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a stage stands. `total` and `seconds_left` are None while they cannot be told."""

    words: str
    done: float = 0.0
    total: float | None = None
    seconds_left: float | None = None

    @property
    def share(self) -> float | None:
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Plain decoding of the same prompt on the same device.

    state: "none" (the job is plain decoding itself, or none was asked for), "waiting", "measuring",
    "measured", "cancelled" or "failed". Seconds are those of the decode steps, the prefill left out.
    """

    state: str = "none"
    tokens: int = 0
    seconds: float = 0.0
    words: str = ""

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one moment; nothing in it changes afterwards."""

    id: str
    request: Any                    # DecodeRequest, or None for a job that fetches a model
    state: str
    ahead: int                      # tasks that run first while the job waits
    progress: Progress
    error: str                      # one sentence when state is "failed"
    info: dict[str, Any]            # as in run.json: pair, device, dtype, prompt ids, ...
    calibration: dict[str, Any]     # made_at, peaks_source, raw_rmse, calibrated_rmse; empty until known
    steps: tuple[StepRecord, ...]
    pieces: tuple[list[str], ...]   # pieces[s][t]: text that token t of step s added to the output
    vocabulary: dict[str, str]      # token id as text -> token text
    yardstick: Yardstick
    events: int                     # length of the log: changes whenever anything did

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def live(self) -> bool:
        """Something may still arrive: the decode itself or its yardstick."""
        return not self.final or self.yardstick.state in ("waiting", "measuring")


@dataclass(eq=False)
class Job:
    """The mutable side. Every change goes through one lock and leaves an event in the log."""

    id: str
    request: Any = None
    log: EventLog = field(default_factory=EventLog)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _state: str = QUEUED
    _progress: Progress = Progress("Waiting")
    _error: str = ""
    _info: dict[str, Any] = field(default_factory=dict)
    _calibration: dict[str, Any] = field(default_factory=dict)
    _steps: list[StepRecord] = field(default_factory=list)
    _pieces: list[list[str]] = field(default_factory=list)
    _vocabulary: dict[str, str] = field(default_factory=dict)
    _yardstick: Yardstick = Yardstick()

    # --- read -------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        with self._lock:
            return self._state

    @property
    def yardstick(self) -> Yardstick:
        with self._lock:
            return self._yardstick

    def view(self, ahead: int = 0) -> JobView:
        with self._lock:
            return JobView(self.id, self.request, self._state, ahead, self._progress, self._error,
                           dict(self._info), dict(self._calibration), tuple(self._steps), tuple(self._pieces),
                           dict(self._vocabulary), self._yardstick, len(self.log))

    # --- written by the worker --------------------------------------------------------------

    def enter(self, state: str, words: str) -> None:
        """Go on to the next stage; raises Cancelled when somebody asked to stop meanwhile."""
        self.stop_here()
        with self._lock:
            if self._state in FINAL:
                raise Cancelled
            self._state, self._progress = state, Progress(words)
        self.log.add("state", {"state": state, "words": words})

    def say(self, progress: Progress) -> None:
        """Report how far the stage is; raises Cancelled when somebody asked to stop meanwhile."""
        self.stop_here()
        with self._lock:
            self._progress = progress
        self.log.add("progress", {"words": progress.words, "done": progress.done,
                                  "total": progress.total, "seconds_left": progress.seconds_left})

    def know(self, info: dict[str, Any]) -> None:
        with self._lock:
            self._info.update(info)
        self.log.add("info", dict(info))

    def calibrated(self, calibration: dict[str, Any]) -> None:
        with self._lock:
            self._calibration = dict(calibration)
        self.log.add("calibration", dict(calibration))

    def learn(self, vocabulary: dict[str, str]) -> None:
        with self._lock:
            self._vocabulary.update(vocabulary)

    def step(self, step: StepRecord, pieces: list[str]) -> None:
        with self._lock:
            self._steps.append(step)
            self._pieces.append(pieces)
        self.log.add("step", step)

    def measure(self, **changes: Any) -> None:
        """Change what is known of the yardstick."""
        with self._lock:
            self._yardstick = replace(self._yardstick, **changes)
            data = {"state": self._yardstick.state, "tokens": self._yardstick.tokens,
                    "seconds": self._yardstick.seconds}
        self.log.add("yardstick", data)

    def end(self, state: str, words: str, error: str = "") -> None:
        """Enter a final state; the first one stands."""
        with self._lock:
            if self._state in FINAL:
                return
            self._state, self._progress, self._error = state, Progress(words), error
        self.log.add("state", {"state": state, "words": words, "error": error})

    # --- stopping ---------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        self._stop.set()
        with self._lock:
            if self._state not in FINAL:
                self._progress = replace(self._progress, words="Stopping", seconds_left=None)

    @property
    def asked_to_stop(self) -> bool:
        return self._stop.is_set()

    def stop_here(self) -> None:
        if self._stop.is_set():
            raise Cancelled


def seconds_left(began: float, done: float, total: float) -> float | None:
    """Remaining seconds at the pace since `began` (time.monotonic); None before anything is done."""
    if done <= 0:
        return None
    return (time.monotonic() - began) / done * max(total - done, 0.0)


__all__ = ["CALIBRATING", "CANCELLED", "DECODING", "DONE", "FAILED", "FETCHING", "FINAL", "LOADING", "QUEUED",
           "Cancelled", "Event", "Job", "JobView", "Progress", "Yardstick", "seconds_left"]
