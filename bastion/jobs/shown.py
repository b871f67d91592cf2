"""A run as a page shows it, whether it is being decoded in this process or was read from the store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bastion.analysis.speed import estimated_plain_speed
from bastion.jobs.job import CALIBRATING, CANCELLED, DECODING, DONE, FAILED, QUEUED, JobView
from bastion.jobs.job_manager import JobManager, manager
from bastion.records import Run, RunSummary
from bastion.step import StepRecord

KEPT_OPEN = 4


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything a page needs of one run at one moment."""

    id: str
    live: bool                      # something may still arrive, a yardstick included
    final: bool                     # the decode itself is over
    words: str                      # what is going on, or how it ended
    share: float | None             # of the stage in progress; None when over or not known
    error: str                      # one sentence when it failed
    info: Mapping[str, Any]         # as in run.json
    steps: Sequence[StepRecord]
    pieces: Sequence[Sequence[str]] # pieces[s][t]: text that token t of step s added to the output
    vocabulary: Mapping[str, str]
    yardstick: dict[str, Any] | None  # {"tokens_per_second", "measured"}

    @property
    def saved(self) -> bool:
        return self.final and bool(self.steps)

    @property
    def drafter_depth(self) -> int | None:
        depth = self.info.get("drafter_depth")
        return depth if isinstance(depth, int) else None

    @property
    def prompt(self) -> str:
        prompt = self.info.get("prompt")
        return prompt if isinstance(prompt, str) else ""


def show(run_id: str, source: JobManager | None = None) -> Shown:
    """The run with this id. Raises UserError when there is none, or when it was deleted, in another tab perhaps."""
    source = source or manager()
    view = source.view(run_id)
    if view is not None and view.final and view.steps:
        source.store.stamp(run_id)
    return of_view(view) if view is not None else of_run(_opened(source, run_id))


def of_view(view: JobView) -> Shown:
    rate = view.yardstick.tokens_per_second
    yardstick = ({"tokens_per_second": rate, "measured": True} if view.yardstick.state == "measured"
                 else _estimate(view.steps))
    info = {"prompt": view.request.prompt if view.request else "", "pair": view.request.pair.label,
            "method": view.request.method, **view.info, "calibration": view.calibration or None}
    return Shown(view.id, view.live, view.final, _job_words(view), None if view.final else view.progress.share,
                 view.error, info, view.steps, view.pieces, view.vocabulary, yardstick)


def of_run(run: Run) -> Shown:
    stored = run.info.get("yardstick") or {}
    rate = stored.get("tokens_per_second")
    measured = isinstance(rate, (int, float)) and rate > 0
    yardstick = {"tokens_per_second": float(rate), "measured": True} if measured else _estimate(run.steps)
    return Shown(run.id, False, True, _run_words(run), None, "", run.info, run.steps, run.pieces, run.vocabulary, yardstick)


def recent(source: JobManager | None = None) -> list[RunSummary]:
    """All runs, newest first; one that is being decoded now (`finish_reason` None) can be opened and stopped."""
    return (source or manager()).store.list()


def _estimate(steps: Sequence[StepRecord]) -> dict[str, Any] | None:
    rate = estimated_plain_speed(steps)
    return None if rate is None else {"tokens_per_second": rate, "measured": False}


def _job_words(view: JobView) -> str:
    words = view.progress.words
    if view.state == QUEUED:
        return f"Waiting: {view.ahead} ahead of you" if view.ahead else "Waiting for the device"
    if view.state in (CALIBRATING, DECODING) and view.progress.seconds_left is not None:
        most = "at most " if view.state == DECODING else "about "
        words += f", {most}{max(view.progress.seconds_left, 1):.0f} s more"
    if view.state == DONE:
        words = _ending(view.info.get("finish_reason"), view.steps)
        if view.yardstick.state == "waiting":
            words += " Next: plain decoding of the same prompt, for the speedup."
        elif view.yardstick.state == "measuring":
            words += f" {view.yardstick.words}: {view.yardstick.tokens} so far."
        elif view.yardstick.words:
            words += f" {view.yardstick.words}."
    if view.state in (CANCELLED, FAILED):
        words = _ending(view.state, view.steps)
    return words


def _run_words(run: Run) -> str:
    reason = run.info.get("finish_reason") if run.complete else "killed"
    words = _ending(reason, run.steps)
    note = run.info.get("note")
    words += " Its drafter is simulated." if run.info.get("simulated") is True else ""
    return f"{words} {note}" if reason == "failed" and isinstance(note, str) else words


def _ending(reason: str | None, steps: Sequence[StepRecord]) -> str:
    tokens = sum(len(step.emitted) for step in steps)
    rounds = sum(step.kind == "decode" for step in steps)
    size = f"{tokens} token{'s' * (tokens != 1)} in {rounds} step{'s' * (rounds != 1)}"
    return {
        "stop": f"Done: {size}; the model ended its answer.",
        "length": f"Done: {size}, as many as asked for.",
        "context": f"Done: {size}; the model's context is full.",
        CANCELLED: f"Stopped after {size}." if tokens else "Stopped before the first token.",
        "killed": f"Interrupted: the server ended during this decode; what was finished is shown, {size}.",
        "failed": f"Failed after {size}." if tokens else "Failed before the first token.",
    }.get(reason or "", f"Done: {size}.")


_open: OrderedDict[tuple[str, str, tuple[int, int]], Run] = OrderedDict()
_open_lock = threading.Lock()


def _opened(source: JobManager, run_id: str) -> Run:
    """The run from disk; whole ones are kept while they do not change, since a page reads its run at every rerun."""
    key = str(source.store.root), run_id, source.store.stamp(run_id)
    with _open_lock:
        if key in _open:
            _open.move_to_end(key)
            return _open[key]
    run = source.store.open(run_id)
    if run.complete:
        with _open_lock:
            _open[key] = run
            while len(_open) > KEPT_OPEN:
                _open.popitem(last=False)
    return run


__all__ = ["Shown", "of_run", "of_view", "recent", "show"]
