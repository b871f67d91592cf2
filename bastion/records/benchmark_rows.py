"""One line of a benchmark's results: what one method did on one turn of one prompt, enough for every table.

`results.jsonl` is only ever appended to. A process killed in the middle of a line leaves a torn tail;
it is left out when reading and cut off before the next line is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from bastion.errors import UserError
from bastion.records.run_json import plain
from bastion.records.totals import acceptance_lengths, decode_steps, output_ids, seconds_prefill
from bastion.step import StepRecord


class Cell(NamedTuple):
    """What a row belongs to. Turns count from 0."""

    prompt_set: str
    prompt: str
    turn: int
    temperature: float
    method: str


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """Token ids and counts of one decode; seconds are sums over its decode steps, the prefill apart.

    nodes, surrogates and walked have one entry per decode step: nodes verified (root included), S(n),
    and nodes of the accepted path. gaps: the target's top-2 logit gap at every emitted id, kept for
    plain decoding only, where differences are looked up. skipped: why the prompt could not be decoded.
    """

    prompt_set: str
    prompt: str
    turn: int
    temperature: float
    method: str
    ids: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    surrogates: tuple[float, ...] = ()
    walked: tuple[int, ...] = ()
    gaps: tuple[float, ...] = ()
    prefill: float = 0.0
    draft: float = 0.0
    build: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    predicted_verify: float | None = None
    wall: float = 0.0
    seed: int = 0
    finish_reason: str = ""
    run: str = ""
    at: str = ""
    skipped: str = ""

    @property
    def cell(self) -> Cell:
        return Cell(self.prompt_set, self.prompt, self.turn, self.temperature, self.method)

    @property
    def tokens(self) -> int:
        """Emitted by decode steps; the prefill's token is left out, as its time is."""
        return sum(self.lengths)

    @property
    def seconds(self) -> float:
        """Of all decode steps, every stage counted."""
        return self.draft + self.build + self.verify + self.commit

    def line(self) -> bytes:
        """The row as it stands in the file, newline included."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(plain(values), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def row_of_steps(cell: Cell, steps: Sequence[StepRecord], keep_gaps: bool, **more: Any) -> BenchmarkRow:
    """The row of a finished decode. `more` are the fields that the steps do not know."""
    rounds = decode_steps(steps)
    predicted = [step.predicted_verify_seconds for step in rounds]
    parts = {name: float(sum(getattr(step.seconds, name) for step in rounds)) for name in ("draft", "build", "verify", "commit")}
    return BenchmarkRow(
        *cell, ids=tuple(output_ids(steps)), lengths=tuple(acceptance_lengths(steps)),
        nodes=tuple(int(step.nodes) for step in rounds), surrogates=tuple(float(step.surrogate) for step in rounds),
        walked=tuple(len(step.accepted) for step in rounds),
        gaps=tuple(round(float(gap), 6) for step in steps for gap in step.top2_gaps) if keep_gaps else (),
        prefill=float(seconds_prefill(steps)), **parts,
        predicted_verify=float(sum(predicted)) if predicted and None not in predicted else None, **more)


def parse_rows(raw: bytes, where: str, first_line: int = 1) -> tuple[list[BenchmarkRow], int]:
    """The whole lines of `raw` as rows, and how many bytes they take; a last line without a newline is torn.

    Raises UserError, naming the line, for a whole line that is no row: that is damage, not a kill.
    """
    good = raw.rfind(b"\n") + 1
    lines = raw[:good].split(b"\n")[:-1]
    return [_row(line, f"{where}, line {number}") for number, line in enumerate(lines, first_line)], good


_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("prompt_set", "prompt", "method", "finish_reason", "run", "at", "skipped"), str),
    **dict.fromkeys(("turn", "seed"), int),
    **dict.fromkeys(("temperature", "prefill", "draft", "build", "verify", "commit", "wall"), (int, float)),
    **dict.fromkeys(("ids", "lengths", "nodes", "walked", "surrogates", "gaps"), list),
}
_WHOLE = ("ids", "lengths", "nodes", "walked")


def _row(line: bytes, where: str) -> BenchmarkRow:
    try:
        values = json.loads(line)
        known = {name: values[name] for name in (field.name for field in fields(BenchmarkRow)) if name in values}
        for name in ("prompt_set", "prompt", "turn", "temperature", "method"):
            known[name]
        for name, kind in _KINDS.items():
            value = known.get(name)
            if name in known and (not isinstance(value, kind) or isinstance(value, bool)):
                raise TypeError(name)
            if isinstance(value, list):
                number = int if name in _WHOLE else (int, float)
                if not all(isinstance(one, number) and not isinstance(one, bool) for one in value):
                    raise TypeError(name)
                known[name] = tuple(value)
        predicted = known.get("predicted_verify")
        if predicted is not None and not isinstance(predicted, (int, float)):
            raise TypeError("predicted_verify")
        known["temperature"] = float(known["temperature"])
        return BenchmarkRow(**known)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{where} is damaged: delete this benchmark and run it again.") from None
