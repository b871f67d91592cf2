"""From the rows of a benchmark to its table: tau, speed and speedup per prompt set and method, with intervals.

Speedup is the ratio of tokens per second over the same prompts, each method's tokens and seconds summed
over decode steps; the prefill is left out of both. The published program averages seconds per token
over prompts instead; a ratio of sums weighs every token alike. Intervals are 95 % percentile
bootstrap intervals over prompts (a conversation of several turns is one prompt), and there is none below
`FEWEST` prompts: the few ways to draw two or three prompts do not cover what another prompt would do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bastion.analysis.parting import first_difference
from bastion.records.benchmark_rows import BenchmarkRow, Cell

YARDSTICK = "ar"
RESAMPLES = 2000
LEVEL = 95.0
FEWEST = 5
"""Prompts of a set from which on its speedup has an interval."""
MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a method's greedy output leaves plain decoding's, as far as rounding lets it."""

    prompt_set: str
    prompt: str
    turn: int
    method: str
    position: int               # in emitted tokens, from 0
    top2_gap: float | None      # the target's top-2 logit gap there; None past the end of plain decoding's output


@dataclass(frozen=True, slots=True)
class TableCell:
    """One method on one prompt set at one temperature. What cannot be told is None.

    `prompts` counts conversations measured by this method and by plain decoding in all their turns;
    all other numbers are over those, so that methods are compared on the same prompts. `prompt_set`
    is "mean" for the mean over sets, whose `prompts` is their sum.
    """

    prompt_set: str
    temperature: float
    method: str
    prompts: int
    skipped: int                # prompts that do not fit the model
    tau: float | None
    tokens_per_second: float | None
    speedup: float | None
    low: float | None           # of the speedup, 95 %; None below `FEWEST` prompts
    high: float | None
    nodes_mean: float | None    # nodes verified per step, root included
    surrogate_mean: float | None
    identical: int | None       # conversations with exactly plain decoding's ids; None above temperature 0
    seconds: dict[str, float]   # draft, build, verify, commit, and prefill
    tokens: int
    steps: int


def differences(rows: Iterable[BenchmarkRow]) -> list[Difference]:
    """Every greedy output that is not plain decoding's, in the order of the rows."""
    rows = [row for row in rows if row.temperature == 0 and not row.skipped]
    plain = {row.cell: row for row in rows if row.method == YARDSTICK}
    found = []
    for row in rows:
        yardstick = plain.get(row.cell._replace(method=YARDSTICK))
        position = None if yardstick is None else first_difference(yardstick.ids, row.ids)
        if position is not None:
            gap = yardstick.gaps[position] if position < len(yardstick.gaps) else None
            found.append(Difference(row.prompt_set, row.prompt, row.turn, row.method, position, gap))
    return found


def benchmark_table(rows: Iterable[BenchmarkRow], sets: Sequence[str], methods: Sequence[str], temperatures: Sequence[float],
                    turns: dict[tuple[str, str], int] | None = None, resamples: int = RESAMPLES) -> list[TableCell]:
    """The table of a benchmark as far as it is: by temperature, then method, then set, and the mean over sets.

    `turns` gives the number of turns of each (set, prompt); a conversation counts once all are measured.
    A mean stands only where every set has a value.
    """
    kept = list(rows)
    groups = _by_prompt(kept, turns or {})
    apart = {(one.prompt_set, one.prompt, one.turn, one.method) for one in differences(kept)}
    table = []
    for temperature in temperatures:
        for method in methods:
            cells, draws = [], []
            for name in sets:
                cell, drawn = _cell(groups, name, temperature, method, apart, resamples)
                cells.append(cell)
                draws.append(drawn)
            table += [*cells, _mean(cells, draws, temperature, method)] if len(sets) > 1 else cells
    return table


_Conversations = dict[str, dict[int, BenchmarkRow]]      # prompt -> turn -> row


def _by_prompt(rows: Iterable[BenchmarkRow], turns: dict[tuple[str, str], int]) -> dict[tuple[str, float, str], _Conversations]:
    """Conversations that a method has measured in all their turns, skipped ones included."""
    groups: dict[tuple[str, float, str], _Conversations] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        groups[row.prompt_set, row.temperature, row.method][row.prompt][row.turn] = row
    for (name, _, _), conversations in groups.items():
        for prompt in [p for p, known in conversations.items() if len(known) < turns.get((name, p), 1)]:
            del conversations[prompt]
    return groups


def _cell(groups: dict[tuple[str, float, str], _Conversations], name: str, temperature: float, method: str,
          apart: set[tuple[str, str, int, str]], resamples: int) -> tuple[TableCell, np.ndarray]:
    own, plain = groups.get((name, temperature, method), {}), groups.get((name, temperature, YARDSTICK), {})
    both = [prompt for prompt in plain if prompt in own]
    used = [prompt for prompt in both if not any(row.skipped for row in own[prompt].values())]
    rows = [row for prompt in used for row in own[prompt].values()]
    tokens, steps = sum(row.tokens for row in rows), sum(len(row.lengths) for row in rows)
    seconds = {part: sum(getattr(row, part) for row in rows) for part in ("draft", "build", "verify", "commit", "prefill")}
    spent = sum(row.seconds for row in rows)
    sums = np.array([_sums(own[prompt]) + _sums(plain[prompt]) for prompt in used], np.float64).reshape(-1, 4)
    drawn = bootstrap_speedups(sums, resamples) if len(sums) >= FEWEST else np.zeros(0)
    low, high = _interval(drawn)
    identical = sum(all((name, prompt, turn, method) not in apart for turn in own[prompt]) for prompt in used)
    cell = TableCell(
        name, temperature, method, len(used), len(both) - len(used), tokens / steps if steps else None,
        tokens / spent if spent > 0 else None, _ratio(sums.sum(0)) if len(sums) else None, low, high,
        sum(sum(row.nodes) for row in rows) / steps if steps else None,
        sum(sum(row.surrogates) for row in rows) / steps if steps else None,
        identical if temperature == 0 else None, seconds, tokens, steps)
    return cell, drawn


def _sums(conversation: dict[int, BenchmarkRow]) -> list[float]:
    return [sum(row.tokens for row in conversation.values()), sum(row.seconds for row in conversation.values())]


def _ratio(sums: np.ndarray) -> float | None:
    """(tokens, seconds) of a method and of plain decoding -> speedup."""
    tokens, spent, plain_tokens, plain_spent = (float(value) for value in sums)
    return tokens / spent / (plain_tokens / plain_spent) if spent > 0 and plain_spent > 0 and plain_tokens > 0 else None


def bootstrap_speedups(sums: np.ndarray, resamples: int = RESAMPLES) -> np.ndarray:
    """Speedups of resampled prompt sets, float64 [resamples]; empty with fewer than two prompts.

    `sums` is [prompts, 4]: tokens and seconds of the method, then of plain decoding. Prompts are drawn
    with replacement, as often as there are prompts; the seed is fixed, so that a table does not flicker.
    """
    prompts = len(sums)
    if prompts < 2:
        return np.zeros(0)
    counts = np.random.default_rng(0).multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)
    drawn = counts @ sums
    with np.errstate(divide="ignore", invalid="ignore"):
        speedups = drawn[:, 0] / drawn[:, 1] / (drawn[:, 2] / drawn[:, 3])
    return speedups[np.isfinite(speedups)]


def _interval(drawn: np.ndarray) -> tuple[float | None, float | None]:
    if not len(drawn):
        return None, None
    low, high = np.percentile(drawn, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high)


def _mean(cells: Sequence[TableCell], draws: Sequence[np.ndarray], temperature: float, method: str) -> TableCell:
    """The plain mean over sets, as published; its interval draws prompts within every set, each of which must have enough."""
    def mean(name: str) -> float | None:
        values = [getattr(cell, name) for cell in cells]
        return None if None in values else sum(values) / len(values)

    shortest = min(len(drawn) for drawn in draws)
    low, high = _interval(np.mean([drawn[:shortest] for drawn in _shuffled(draws)], axis=0)) if shortest else (None, None)
    parts = {part: sum(cell.seconds[part] for cell in cells) for part in cells[0].seconds}
    identical = [cell.identical for cell in cells]
    return TableCell(MEAN, temperature, method, sum(cell.prompts for cell in cells), sum(cell.skipped for cell in cells),
                     mean("tau"), mean("tokens_per_second"), mean("speedup"), low, high, mean("nodes_mean"), mean("surrogate_mean"),
                     None if None in identical else sum(identical), parts,
                     sum(cell.tokens for cell in cells), sum(cell.steps for cell in cells))


def _shuffled(draws: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The draws of each set in an order of its own: two sets of one size were drawn with the same numbers."""
    return [np.random.default_rng(place).permutation(drawn) for place, drawn in enumerate(draws)]


def progress_by_cell(rows: Iterable[BenchmarkRow], expected: Iterable[Cell]) -> dict[tuple[str, str], tuple[int, int]]:
    """(set, method) -> decodes done and decodes in all, over prompts, turns and temperatures."""
    counts: dict[tuple[str, str], list[int]] = {}
    for cell in expected:
        counts.setdefault((cell.prompt_set, cell.method), [0, 0])[1] += 1
    for row in rows:
        if (row.prompt_set, row.method) in counts:
            counts[row.prompt_set, row.method][0] += 1
    return {key: (done, total) for key, (done, total) in counts.items()}


def cell_values(cell: TableCell) -> dict[str, Any]:
    """One flat row of the table at full precision, for CSV and JSON; seconds by part in columns of their own."""
    return {
        "set": cell.prompt_set, "temperature": cell.temperature, "method": cell.method, "prompts": cell.prompts,
        "skipped": cell.skipped, "tau": cell.tau, "tokens_per_second": cell.tokens_per_second, "speedup": cell.speedup,
        "speedup_low": cell.low, "speedup_high": cell.high, "nodes_mean": cell.nodes_mean, "surrogate_mean": cell.surrogate_mean,
        "identical_to_ar": cell.identical, "tokens": cell.tokens, "steps": cell.steps,
        **{f"seconds_{part}": value for part, value in cell.seconds.items()},
    }
