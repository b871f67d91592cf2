"""A race as a page shows it: while it is decoded, when it is over, when it was cut short, or made of saved runs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bastion.analysis.race import Row, race_table, speed_points
from bastion.analysis.race_lanes import Lane, Mismatch, is_greedy, lanes_of
from bastion.analysis.race_live import LivePoint, live_points
from bastion.errors import UserError
from bastion.jobs.job import DECODING, QUEUED, JobView
from bastion.jobs.job_manager import JobManager, manager
from bastion.records.races import Race, RaceStore, is_whole
from bastion.records.run import Run
from bastion.records.schema import RUN_JSON

KEPT_RUNS = 40

_runs: OrderedDict[tuple[str, str, int], Run] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class RaceShown:
    """Everything a page needs of one race at one moment."""

    id: str                          # empty for runs that were picked by hand
    race: Race | None
    live: bool
    words: str
    share: float | None
    error: str
    info: dict[str, Any]             # of the running job, as in run.json
    points: tuple[LivePoint, ...]
    now: dict[str, Any] | None       # the decode that runs
    runs: tuple[Run, ...]            # none while the race is live
    lanes: tuple[Lane, ...]
    mismatches: tuple[Mismatch, ...]
    rows: tuple[Row, ...]
    left: int                        # decodes that are not done
    problems: tuple[str, ...] = ()   # one sentence for each run that cannot be shown

    @property
    def labels(self) -> tuple[str, ...]:
        """The rows of the chart, in the order asked for."""
        return self.race.methods if self.live and self.race else tuple(lane.label for lane in self.lanes)

    @property
    def greedy(self) -> bool:
        return is_greedy(self.runs)

    @property
    def median_yardstick(self) -> bool:
        return any(row.speedup_by == "median" for row in self.rows)


def show_race(race_id: str, source: JobManager | None = None, races: RaceStore | None = None) -> RaceShown:
    """The race with this id. Raises UserError when there is none."""
    source, races = source or manager(), races or RaceStore()
    view = source.view(race_id)
    if view is not None and not view.final:
        return _of_view(view)
    try:
        race = races.open(race_id)
    except UserError:
        if view is None or not isinstance(view.request, Race):
            raise
        return RaceShown(race_id, view.request, False, _job_words(view), None, view.error, {}, (), None, (), (), (), (),
                         len(view.request.slots()))
    return _of_race(race, source, view)


def show_runs(run_ids: Sequence[str], source: JobManager | None = None) -> RaceShown:
    """Runs that were saved before, side by side; those that cannot be opened are named in `problems`."""
    source = source or manager()
    runs, problems = [], []
    for run_id in dict.fromkeys(run_ids):
        try:
            runs.append(_opened(source, run_id))
        except UserError as error:
            problems.append(str(error))
    return _compared("", None, runs, 0, "", "", tuple(problems))


def _of_view(view: JobView) -> RaceShown:
    race: Race = view.request
    done, now = view.info.get("done", []), view.info.get("now")
    points = live_points(done, now, view.info.get("warm_up", {}))
    return RaceShown(view.id, race, True, _job_words(view), view.progress.share, "", view.info, tuple(points), now, (), (), (), (),
                     len(race.slots()) - len(done))


def _of_race(race: Race, source: JobManager, view: JobView | None) -> RaceShown:
    runs, left = {}, 0
    for slot in race.slots():
        try:
            runs[slot] = _opened(source, slot.run_id)
        except UserError:
            pass
        left += slot not in runs or not is_whole(runs[slot])
    whole = {slot.method for slot, run in runs.items() if is_whole(run)}
    kept = [run for slot, run in sorted(runs.items(), key=lambda item: (race.methods.index(item[0].method), item[0].repeat))
            if is_whole(run) or slot.method not in whole]   # half a decode beside whole ones would only blur them
    total = len(race.slots())
    decodes = "decode" if total == 1 else "decodes"
    words = f"Done: {total} {decodes}." if not left else f"{total - left} of {total} {decodes} {'is' if total == 1 else 'are'} done."
    if left and view is not None:
        words = f"{_job_words(view)} {words}".strip()
    return _compared(race.id, race, kept, left, words, view.error if view is not None else "")


def _compared(race_id: str, race: Race | None, runs: Sequence[Run], left: int, words: str, error: str,
              problems: tuple[str, ...] = ()) -> RaceShown:
    lanes, mismatches = lanes_of(runs)
    return RaceShown(race_id, race, False, words, None, error, dict(runs[0].info) if runs else {}, tuple(speed_points(lanes)), None,
                     tuple(runs), tuple(lanes), tuple(mismatches), tuple(race_table(lanes)), left, problems)


def _job_words(view: JobView) -> str:
    if view.state == QUEUED:
        return f"Waiting: {view.ahead} ahead of you" if view.ahead else "Waiting for the device"
    words = view.progress.words
    if not view.final and view.progress.seconds_left is not None:
        words += f", {'at most' if view.state == DECODING else 'about'} {max(view.progress.seconds_left, 1):.0f} s more"
    return {"done": "", "cancelled": "Stopped.", "failed": "Failed."}.get(view.state, words)


def _opened(source: JobManager, run_id: str) -> Run:
    """The run from disk; whole ones are kept, since a page reads its runs at every rerun."""
    try:
        written = (source.store.root / run_id / RUN_JSON).stat().st_mtime_ns
    except (OSError, ValueError):
        return source.store.open(run_id)
    key = str(source.store.root), run_id, written
    with _lock:
        if key in _runs:
            _runs.move_to_end(key)
            return _runs[key]
    run = source.store.open(run_id)
    with _lock:
        _runs[key] = run
        while len(_runs) > KEPT_RUNS:
            _runs.popitem(last=False)
    return run
