"""A race: methods decode one prompt in turn, in a shuffled order, several times over, as one job.

Every decode is saved as a run that belongs to the race. What is decoded is not decoded again: a race
that was stopped or whose process died goes on where it was.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bastion.errors import UserError
from bastion.jobs.job import DECODING, Job, Progress, seconds_left
from bastion.jobs.job_manager import JobManager, manager
from bastion.jobs.offers import registry_name
from bastion.jobs.recorded import record
from bastion.jobs.request import DecodeRequest, PairChoice
from bastion.jobs.runner import calibrate_for, load
from bastion.records.ids import new_run_id
from bastion.records.races import Race, RaceStore, Slot, is_whole, new_race
from bastion.records.totals import tokens_per_second
from bastion.step import StepRecord

YARDSTICK = "ar"
WARM_UP_TOKENS = 8
MOST_METHODS, MOST_REPEATS = 8, 20


@dataclass(frozen=True, slots=True)
class RaceRequest:
    """One prompt, several methods, the same sampling and seed for all."""

    prompt: str
    methods: tuple[str, ...]
    repeats: int = 3
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 128
    seed: int = 0
    pair: PairChoice = PairChoice()

    def check(self) -> RaceRequest:
        """The request with its methods' names as the registry writes them, each once, and the yardstick
        among them. Raises UserError that names what cannot be used."""
        if not self.methods:
            raise UserError("Choose at least one method to race.")
        names = tuple(dict.fromkeys(registry_name(method) for method in self.methods))
        if YARDSTICK not in names:
            names = (YARDSTICK, *names)
        if len(names) > MOST_METHODS:
            raise UserError(f"A race has {MOST_METHODS} lanes at most, plain decoding included; leave out {len(names) - MOST_METHODS}.")
        if not 1 <= self.repeats <= MOST_REPEATS:
            raise UserError(f"Repeat the race 1 to {MOST_REPEATS} times.")
        checked = replace(self, methods=names)
        checked.decode(names[0]).check()
        return checked

    def decode(self, method: str) -> DecodeRequest:
        """The decode of one of its methods."""
        return DecodeRequest(self.prompt, method, self.pair, self.temperature, self.top_p, self.top_k, self.max_new_tokens, self.seed)


def start_race(request: RaceRequest, source: JobManager | None = None, races: RaceStore | None = None) -> str:
    """Queue a race; its id, which is the job's. Raises UserError on a bad request. The race's file is
    written when its turn comes and its prompt fits the model."""
    source, races = source or manager(), races or RaceStore()
    checked, race_id = request.check(), new_run_id()
    race = new_race(race_id, checked.prompt, checked.methods, checked.repeats, zlib.crc32(race_id.encode()),
                    yardstick_added=YARDSTICK not in (registry_name(method) for method in request.methods),
                    sampling=checked.decode(YARDSTICK).sampling(), pair=asdict(checked.pair))
    return source.start(race, checked.pair, lambda job: run_race(job, race, source, races), race_id)


def resume_race(race_id: str, source: JobManager | None = None, races: RaceStore | None = None) -> str:
    """Queue what is left of a race; its id. Raises UserError when there is none or its request cannot be run here."""
    source, races = source or manager(), races or RaceStore()
    race = races.open(race_id)
    checked = request_of(race).check()
    return source.start(race, checked.pair, lambda job: run_race(job, race, source, races), race_id)


def request_of(race: Race) -> RaceRequest:
    """What a stored race was asked for. Raises UserError for values that cannot have been."""
    try:
        sampling = {name: kind(race.sampling[name]) for name, kind in (
            ("temperature", float), ("top_p", float), ("top_k", int), ("max_new_tokens", int), ("seed", int))}
        return RaceRequest(race.prompt, race.methods, race.repeats, **sampling, pair=PairChoice(**race.pair))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"The file of race {race.id} is damaged: start a new race.") from None


def run_race(job: Job, race: Race, source: JobManager, races: RaceStore) -> None:
    """The work of the job: load, calibrate, warm up, then every decode that is not done yet."""
    engine, store, request = source.engine, source.store, request_of(race)
    pair = load(job, engine, request.pair)
    prompt_ids = engine.encode(pair, request.prompt)   # refused before anything is written
    job.know(engine.info(pair, prompt_ids, request.decode(YARDSTICK)))
    races.save(race)
    board = _Board(job, race)
    slots, calibrations = [], {}
    for slot in race.slots():
        totals = _finished(store, slot)
        if totals is None:
            slots.append(slot)
        else:
            board.finished(slot, totals)
    for repeat in range(1, race.repeats + 1):   # a kill may have come between the last decode of a repeat and this
        _attach_yardsticks(store, race, repeat, board)
    for method in dict.fromkeys(slot.method for slot in slots):
        calibrations[method] = calibrate_for(job, engine, pair, request.decode(method))
    _warm_up(job, engine, pair, prompt_ids, request, list(calibrations), board)
    began, counted = time.monotonic(), 0.0
    for done, slot in enumerate(slots):
        def heard(step: StepRecord, _pieces: list[str], slot: Slot = slot, done: int = done) -> None:
            nonlocal counted
            board.step(slot, step)
            tokens = board.tokens
            counted = done + min(tokens / request.max_new_tokens, 1.0)
            job.say(Progress(f"{place_words(race, slot)}, {tokens} of at most {request.max_new_tokens} tokens",
                             len(race.slots()) - len(slots) + counted, len(race.slots()), seconds_left(began, counted, len(slots))))

        _decode(job, engine, store, pair, prompt_ids, request.decode(slot.method), slot, calibrations[slot.method], heard, board)
        totals = _finished(store, slot)
        if totals is not None:
            board.finished(slot, totals)
        _attach_yardsticks(store, race, slot.repeat, board)


def place_words(race: Race, slot: Slot) -> str:
    """Which decode this is, such as "Repeat 2 of 3: ddtree:8 (6 of 12)"."""
    number = (slot.repeat - 1) * len(race.methods) + slot.order
    return f"Repeat {slot.repeat} of {race.repeats}: {slot.method} ({number} of {len(race.slots())})"


class _Board:
    """What a page polls of a running race: `info["done"]`, `info["now"]` and `info["warm_up"]`.

    done: one entry per finished decode: run_id, method, repeat, order, tokens_per_second, tau. now: the
    same of the decode that runs, as far as it is. warm_up: tokens per second of each method's warm-up.
    """

    def __init__(self, job: Job, race: Race) -> None:
        self._job, self._done, self._warm = job, [], {}
        self._steps: list[StepRecord] = []
        job.know({"done": [], "now": None, "warm_up": {}, "decodes": len(race.slots())})

    @property
    def tokens(self) -> int:
        return sum(len(step.emitted) for step in self._steps)

    @property
    def done(self) -> list[dict[str, Any]]:
        return self._done

    def warmed(self, method: str, steps: list[StepRecord]) -> None:
        self._warm = {**self._warm, method: tokens_per_second(steps)}
        self._job.know({"warm_up": self._warm})

    def begin(self, slot: Slot) -> None:
        self._steps = []
        self._job.know({"now": _entry(slot, None, None)})

    def step(self, slot: Slot, step: StepRecord) -> None:
        self._steps.append(step)
        rounds = [s for s in self._steps if s.kind == "decode"]
        tau = sum(len(s.emitted) for s in rounds) / len(rounds) if rounds else None
        self._job.know({"now": _entry(slot, tokens_per_second(self._steps), tau)})

    def finished(self, slot: Slot, totals: Mapping[str, Any]) -> None:
        self._done = [*self._done, _entry(slot, totals.get("tokens_per_second"), totals.get("tau"))]
        self._job.know({"done": self._done, "now": None})


def _entry(slot: Slot, speed: float | None, tau: float | None) -> dict[str, Any]:
    return {"run_id": slot.run_id, "method": slot.method, "repeat": slot.repeat, "order": slot.order,
            "tokens_per_second": speed, "tau": tau}


def _warm_up(job: Job, engine: Any, pair: Any, prompt_ids: list[int], request: RaceRequest, methods: list[str], board: _Board) -> None:
    """A few tokens of each method: kernels are chosen and caches filled before the clock counts. Not saved, not counted."""
    for method in methods:
        job.enter(DECODING, f"Warming up {method}, not counted")
        decode = replace(request.decode(method), max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
        steps = engine.decode(pair, prompt_ids, decode, lambda _done: job.stop_here())
        kept = []
        try:
            for step in steps:
                kept.append(step)
                job.stop_here()
        finally:
            steps.close()
        board.warmed(method, kept)


def _decode(job: Job, engine: Any, store: Any, pair: Any, prompt_ids: list[int], request: DecodeRequest, slot: Slot,
            calibration: Mapping[str, Any], heard: Any, board: _Board) -> None:
    board.begin(slot)
    steps = engine.decode(pair, prompt_ids, request, lambda _done: job.stop_here())
    info = {**engine.info(pair, prompt_ids, request), "calibration": dict(calibration) or None, "group": slot.group}
    try:
        writer = store.create(info, run_id=slot.run_id, text_of=lambda ids: engine.texts(pair, ids),
                              decode=lambda ids: engine.text(pair, ids))
    except BaseException:
        steps.close()
        raise
    record(steps, writer, heard)


def _finished(store: Any, slot: Slot) -> dict[str, Any] | None:
    """Totals of the slot's run when it ran its course. What is left of one that did not goes: it is decoded again."""
    try:
        run = store.open(slot.run_id)
    except UserError:
        _forget(store, slot)
        return None
    if is_whole(run):
        return run.info["totals"]
    _forget(store, slot)
    return None


def _forget(store: Any, slot: Slot) -> None:
    try:
        store.delete(slot.run_id)
    except UserError:
        pass   # there is none


def _attach_yardsticks(store: Any, race: Race, repeat: int, board: _Board) -> None:
    """Once a repeat is whole, its runs carry plain decoding of the same repeat as their yardstick."""
    entries = [entry for entry in board.done if entry["repeat"] == repeat]
    plain = next((entry for entry in entries if entry["method"] == YARDSTICK), None)
    if plain is None or len(entries) < len(race.methods) or not plain["tokens_per_second"]:
        return
    for entry in entries:
        if entry["method"] != YARDSTICK and store.open(entry["run_id"]).info["yardstick"] is None:
            store.attach_yardstick(entry["run_id"], {"method": YARDSTICK, "run_id": plain["run_id"],
                                                     "tokens_per_second": plain["tokens_per_second"]})
