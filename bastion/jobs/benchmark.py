"""Run a benchmark: every prompt by every method before the next prompt, each result on disk at once.

The order of the methods turns with every prompt, so that a machine that slows down or warms up does
so for all of them alike; plain decoding (`ar`) is always among them. What stands on disk is not
measured again, so that a benchmark goes on wherever it was stopped, also by a kill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bastion.errors import UserError
from bastion.jobs.benchmark_decoder import Decoder, Messages
from bastion.jobs.benchmark_request import BenchmarkRequest, prompt_seed
from bastion.jobs.benchmark_runs import RunKeeper
from bastion.jobs.compare import WARM_UP_TOKENS, YARDSTICK
from bastion.jobs.prompt_sets import load_prompt_set
from bastion.records.benchmark_rows import BenchmarkRow, Cell, row_of_steps
from bastion.records.benchmark_store import Benchmark, BenchmarkPrompt, BenchmarkStore, BenchmarkWriter
from bastion.records.totals import why_finished

Say = Callable[[str, float | None, float | None], None]
"""(words, share done or None, seconds left or None); may raise to stop."""

SAME_THROUGHOUT = ("pair", "device", "dtype", "attention")


def find_or_create(request: BenchmarkRequest, store: BenchmarkStore, again: bool = False, bench_id: str | None = None,
                   say: Say | None = None) -> tuple[str, bool]:
    """(id, found): the benchmark of this checked request, or a new one with its prompts read now.

    With `again` a finished one is left alone and another is begun. An unfinished one is always taken up.
    """
    found = store.find(request.key)
    if found is not None and not (again and found.finished):
        return found.id, True
    return create(request, store, bench_id, say), False


def create(request: BenchmarkRequest, store: BenchmarkStore, bench_id: str | None = None, say: Say | None = None) -> str:
    """Read the prompts of a checked request and begin its benchmark."""
    report = say or (lambda words, share, left: None)
    prompts = []
    for name in request.sets:
        report(f"Reading the prompt set {name}", None, None)
        prompt_set = load_prompt_set(name, request.limit, lambda words: report(words, None, None))
        prompts += [BenchmarkPrompt(prompt_set.name, one.id, one.turns) for one in prompt_set.conversations]
    if len({(prompt.prompt_set, prompt.id) for prompt in prompts}) < len(prompts):
        prompts = _told_apart(prompts)
    return store.create({"request": request.to_json(), "key": request.key, "sessions": [], "calibration": {}}, prompts, bench_id)


def run_benchmark(bench_id: str, store: BenchmarkStore, decoder: Decoder, say: Say, keeper: RunKeeper | None = None) -> Benchmark:
    """Measure whatever is missing and return the finished benchmark. `say` may raise to stop.

    Raises UserError when another process is at work on it, or when it was begun with another pair or device.
    """
    with store.writer(bench_id) as writer:
        benchmark = store.open(bench_id)
        if not benchmark.finished:
            _Session(benchmark, writer, decoder, say, keeper).run()
    return store.open(bench_id)


class _Session:
    """One process's turn at a benchmark."""

    def __init__(self, benchmark: Benchmark, writer: BenchmarkWriter, decoder: Decoder, say: Say, keeper: RunKeeper | None) -> None:
        self.benchmark, self.writer, self.decoder, self.say, self.keeper = benchmark, writer, decoder, say, keeper
        self.request = BenchmarkRequest.from_json(benchmark.info["request"])
        self.rows: dict[Cell, BenchmarkRow] = {row.cell: row for row in benchmark.rows}
        self.places = {cell: place for place, cell in enumerate(benchmark.cells())}
        self.pace = Pace(benchmark)

    def run(self) -> None:
        self._begin()
        self._warm_up()
        names = self.benchmark.methods
        place = 0
        for prompt in self.benchmark.prompts:
            for temperature in self.benchmark.temperatures:
                turned = names[place % len(names):] + names[:place % len(names)]
                self._conversation(prompt, temperature, turned)
                place += 1

    def _begin(self) -> None:
        """Note this session in bench.json, with the calibration that the whole benchmark uses."""
        facts = self.decoder.facts()
        info = dict(self.benchmark.info)
        if info["sessions"]:
            for name in SAME_THROUGHOUT:
                if facts[name] != info[name]:
                    raise UserError(f"This benchmark was begun with {name} {info[name]}, and here it is {facts[name]}: "
                                    "go on with it there, or start a new one.")
        else:
            info |= facts
        now = self.decoder.calibrate(self.benchmark.methods, lambda words, share: self.say(f"Calibrating this device, once. {words}", None, None))
        info["calibration"] = info["calibration"] or now
        self.decoder.pin(info["calibration"])
        info["sessions"] = [*info["sessions"], {
            "began": _now(), "done": self.benchmark.done, "versions": facts["versions"], "calibration": now.get("made_at", "")}]
        self.benchmark.info.update(info)
        self.writer.note(info)
        if self.keeper is not None:
            self.keeper.begin(info)
        for note in session_notes(info):
            self.say(note, None, None)

    def _missing(self) -> list[Cell]:
        return [cell for cell in self.places if cell not in self.rows]

    def _warm_up(self) -> None:
        """Kernels are chosen and caches filled before the clock counts."""
        missing = self._missing()
        first = next((p for p in self.benchmark.prompts if (p.prompt_set, p.id) == missing[0][:2]), None)
        for method in dict.fromkeys(cell.method for cell in missing):
            self.say(f"Warming up {method}", None, None)
            try:
                ids = self.decoder.encode([_user(first.turns[0])])
            except UserError:
                return   # too long for the model: said at the prompt itself
            list(self.decoder.decode(ids, method, 0.0, WARM_UP_TOKENS, 0))

    def _conversation(self, prompt: BenchmarkPrompt, temperature: float, methods: Sequence[str]) -> None:
        messages: Messages = []
        for turn, words in enumerate(prompt.turns):
            messages = [*messages, _user(words)]
            cells = [Cell(prompt.prompt_set, prompt.id, turn, temperature, method) for method in methods]
            missing = [cell for cell in cells if cell not in self.rows]
            try:
                ids = self.decoder.encode(messages) if missing else []
            except UserError as error:
                for cell in missing:
                    self._add(BenchmarkRow(*cell, at=_now(), skipped=str(error)))
                continue
            for cell in missing:
                self._decode(cell, ids, messages)
            answer = self.rows[Cell(prompt.prompt_set, prompt.id, turn, temperature, YARDSTICK)]
            messages = [*messages, {"role": "assistant", "content": self.decoder.text(answer.ids)}]

    def _decode(self, cell: Cell, ids: list[int], messages: Messages) -> None:
        seed = prompt_seed(self.request.seed, cell.prompt_set, cell.prompt, cell.turn)
        words = f"{cell.prompt_set}, prompt {cell.prompt}, {cell.method}"
        done, total = len(self.rows), self.benchmark.total
        began, emitted = time.monotonic(), 0
        most = self.request.max_new_tokens

        def report(part: float) -> None:
            self.say(words, (done + part) / total, self.pace.seconds_left(cell.method, part))

        report(0.0)
        steps = self.decoder.decode(ids, cell.method, cell.temperature, most, seed, trace=self.keeper is not None,
                                    on_read=lambda _done: report(0.0))
        taken, run = [], ""
        if self.keeper is not None:
            run, steps = self.keeper.keep(cell, self.places[cell], ids, messages, seed, steps)
        try:
            for step in steps:
                taken.append(step)
                emitted += len(step.emitted)
                report(emitted / most)
        finally:
            steps.close()
        self._add(row_of_steps(
            cell, taken, keep_gaps=cell.method == YARDSTICK, wall=time.monotonic() - began, seed=seed, run=run, at=_now(),
            finish_reason=why_finished([t for s in taken for t in s.emitted], self.decoder.stop_token_ids, most)))

    def _add(self, row: BenchmarkRow) -> None:
        self.writer.append(row)
        self.rows[row.cell] = row
        self.pace.add(row)


class Pace:
    """How long the rest takes, by what each method took so far; None until something was measured."""

    def __init__(self, benchmark: Benchmark) -> None:
        self._left: dict[str, int] = {}
        for cell in benchmark.cells():
            self._left[cell.method] = self._left.get(cell.method, 0) + 1
        self._spent: dict[str, list[float]] = {}
        for row in benchmark.rows:
            self.add(row)

    def add(self, row: BenchmarkRow) -> None:
        self._left[row.method] -= 1
        if not row.skipped:
            self._spent.setdefault(row.method, []).append(row.wall)

    def seconds_left(self, running: str | None = None, part: float = 0.0) -> float | None:
        """A method not measured yet is taken to be as quick as the mean of the others."""
        means = {method: sum(walls) / len(walls) for method, walls in self._spent.items()}
        if not means:
            return None
        usual = sum(means.values()) / len(means)
        return sum(means.get(method, usual) * (left - (part if method == running else 0.0)) for method, left in self._left.items())


def session_notes(info: Mapping[str, Any]) -> list[str]:
    """What changed between the sessions of a benchmark, one sentence each; empty when all was the same."""
    sessions, notes = info.get("sessions") or [], []
    used = (info.get("calibration") or {}).get("made_at")
    later = [one["calibration"] for one in sessions if one.get("calibration") and one["calibration"] != used]
    if used and later:
        notes.append(f"The device was calibrated again on {later[-1][:16].replace('T', ' ')} after this benchmark began; "
                     f"all of it uses the calibration of {used[:16].replace('T', ' ')}.")
    first = sessions[0].get("versions") if sessions else None
    changed = [one for one in sessions[1:] if one.get("versions") != first]
    if changed:
        names = sorted(name for name in changed[-1]["versions"] if changed[-1]["versions"][name] != first.get(name))
        notes.append(f"It went on with other versions of {', '.join(names)} than it began with.")
    return notes


def _told_apart(prompts: list[BenchmarkPrompt]) -> list[BenchmarkPrompt]:
    """Prompts of one set that share an id get their place behind it: results are told apart by the id."""
    seen: dict[tuple[str, str], int] = {}
    apart = []
    for prompt in prompts:
        place = seen[prompt.prompt_set, prompt.id] = seen.get((prompt.prompt_set, prompt.id), 0) + 1
        apart.append(prompt if place == 1 else BenchmarkPrompt(prompt.prompt_set, f"{prompt.id} ({place})", prompt.turns))
    return apart


def _user(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
