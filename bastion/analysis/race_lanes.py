"""Runs of one prompt side by side: one lane a method, one run a repeat, and what keeps them from being comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bastion.records.races import is_whole
from bastion.records.run import Run
from bastion.records.totals import seconds_decode, tokens_per_second

YARDSTICK = "ar"

COMPARED = (
    ("prompt", "prompts"), ("pair", "pairs"), ("device", "devices"), ("dtype", "number types"), ("attention", "attention"),
    ("temperature", "temperatures"), ("top_p", "top-p"), ("top_k", "top-k"), ("max_new_tokens", "token limits"), ("seed", "seeds"),
)
"""What runs must share to be compared, and how it is called when they do not. `seed` counts only when tokens are drawn."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The runs of one method, one a repeat, in the order of the repeats."""

    label: str                  # the method, with what sets it apart where two lanes share it
    method: str
    runs: tuple[Run, ...]
    repeats: tuple[int, ...]    # repeats[i] is the repeat of runs[i], from 1

    def run(self, repeat: int) -> Run | None:
        """The run of a repeat; None where it is missing."""
        return next((run for run, number in zip(self.runs, self.repeats, strict=True) if number == repeat), None)

    @property
    def median(self) -> int:
        """Index of the run with the median speed (the lower of two), whole runs first: the one to look at."""
        order = sorted(range(len(self.runs)), key=lambda i: (tokens_per_second(self.runs[i].steps) or 0.0, i))
        whole = [i for i in order if is_whole(self.runs[i])] or order
        return whole[(len(whole) - 1) // 2]

    @property
    def whole(self) -> Lane:
        """The same lane with only the runs that ran their course: what was stopped, killed or failed is no repeat."""
        kept = [(run, repeat) for run, repeat in zip(self.runs, self.repeats, strict=True) if is_whole(run)]
        return replace(self, runs=tuple(run for run, _ in kept), repeats=tuple(repeat for _, repeat in kept))


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing in which the runs differ. `values` maps each value, as text, to the methods of its runs."""

    name: str
    values: dict[str, tuple[str, ...]]


def lanes_of(runs: Sequence[Run]) -> tuple[list[Lane], list[Mismatch]]:
    """Lanes in the order of their first run, and what the runs differ in.

    Runs of one method that agree in everything compared are repeats of one lane. Repeats are numbered as
    their race numbered them when all runs belong to one race, else by the order given.
    """
    mismatches = _mismatches(runs)
    names = [mismatch.name for mismatch in mismatches]
    raced = len({(_group(run).get("id"), _group(run).get("kind")) for run in runs}) == 1 and all(
        isinstance(_group(run).get("repeat"), int) for run in runs)
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        found.setdefault((run.info["method"], *(_text(run, name) for name in names)), []).append(run)
    methods = [key[0] for key in found]
    lanes = []
    for key, members in found.items():
        label = key[0]
        if methods.count(label) > 1:
            apart = [f"{name} {_short(value)}" for name, value in zip(names, key[1:], strict=True)
                     if len({other[1 + names.index(name)] for other in found if other[0] == key[0]}) > 1]
            label += ", " + ", ".join(apart)
        numbers = [_group(run)["repeat"] for run in members] if raced else range(1, len(members) + 1)
        paired = sorted(zip(numbers, members, strict=True), key=lambda pair: pair[0])
        lanes.append(Lane(label, key[0], tuple(run for _, run in paired), tuple(number for number, _ in paired)))
    return lanes, mismatches


def yardstick_lane(lanes: Sequence[Lane]) -> Lane | None:
    """The lane of plain decoding; None when there is none with a run, or more than one (the runs differ too much)."""
    plain = [lane for lane in lanes if lane.method == YARDSTICK and lane.runs]
    return plain[0] if len(plain) == 1 else None


def is_greedy(runs: Sequence[Run]) -> bool:
    """All runs take the most probable token, so that their texts must agree."""
    return all(run.info["sampling"].get("temperature") == 0 for run in runs)


def finish_seconds(run: Run, with_prefill: bool = False) -> float:
    """Measured seconds until the last token: of the decode steps, or of all steps."""
    return sum(step.seconds.total for step in run.steps) if with_prefill else seconds_decode(run.steps)


def _mismatches(runs: Sequence[Run]) -> list[Mismatch]:
    drawn = not is_greedy(runs)
    found = []
    for name, _words in COMPARED:
        if name == "seed" and not drawn:
            continue
        values: dict[str, list[str]] = {}
        for run in runs:
            methods = values.setdefault(_text(run, name), [])
            if run.info["method"] not in methods:
                methods.append(run.info["method"])
        if len(values) > 1:
            found.append(Mismatch(name, {value: tuple(methods) for value, methods in values.items()}))
    return found


def mismatch_words(mismatch: Mismatch) -> str:
    """One sentence: "The temperatures differ: 0 (ar, bastion); 0.7 (dflash)." """
    called = dict(COMPARED)[mismatch.name]
    sides = "; ".join(f"{_short(value) or 'not recorded'} ({', '.join(methods)})" for value, methods in mismatch.values.items())
    return f"The {called} differ: {sides}."


def _text(run: Run, name: str) -> str:
    value: Any = run.info.get(name)
    if name == "prompt":   # the ids are what was decoded; the words name them
        return value if isinstance(value, str) else f"{len(run.prompt_ids)} prompt ids, {hash(tuple(run.prompt_ids)) & 0xffff:04x}"
    if value is None:
        value = run.info["sampling"].get(name)
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


def _short(value: str, longest: int = 48) -> str:
    line = " ".join(value.split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def _group(run: Run) -> dict[str, Any]:
    return run.info.get("group") or {}

