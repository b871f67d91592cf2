"""What a race found: one row a method, every figure over the repeats, with its spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd

from bastion.analysis.race_difference import Difference, first_difference
from bastion.analysis.race_lanes import Lane, is_greedy, yardstick_lane
from bastion.analysis.race_live import LivePoint
from bastion.records.run import Run
from bastion.records.totals import decode_steps, output_ids, seconds_prefill, tau, tokens_per_second

STAGES = ("draft", "build", "verify", "commit")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of one figure over the repeats."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Row:
    """One lane. Seconds are means a step within a repeat; each Spread is over the repeats; None where undefined."""

    label: str
    method: str
    repeats: int                      # whole runs: what was stopped, killed or failed is no repeat
    tokens: Spread | None             # emitted, the prefill's first token included
    speedup: Spread | None            # of each repeat's tokens/s over plain decoding's in the same repeat
    speedup_by: str                   # "repeat", "median" (of plain decoding's repeats), "yardstick" (the run's own), ""
    tau: Spread | None
    tokens_per_second: Spread | None
    nodes: Spread | None              # mean nodes a step, root included
    draft: Spread | None
    build: Spread | None
    verify: Spread | None
    commit: Spread | None
    prefill: Spread | None
    identical: int | None             # repeats whose ids are plain decoding's; None when tokens are drawn, or without it
    difference: Difference | None     # the first one found


def race_table(lanes: Sequence[Lane]) -> list[Row]:
    """One row a lane, in order. Speedups and identity are against the lane of `ar`. Only whole runs count."""
    whole = [lane.whole for lane in lanes]
    plain = yardstick_lane(whole)
    greedy = is_greedy([run for lane in lanes for run in lane.runs])
    return [_row(lane, plain, greedy) for lane in whole]


def speedups(lane: Lane, plain: Lane | None) -> tuple[list[float], str]:
    """Tokens/s of each of the lane's runs over plain decoding's, and against what: the same repeat's, else
    the median of plain decoding's repeats, else the yardstick measured with the run itself."""
    if plain is None:
        own = [_ratio(run, (run.info.get("yardstick") or {}).get("tokens_per_second")) for run in lane.runs]
        return _known(own), "yardstick" if _known(own) else ""
    if set(lane.repeats) <= set(plain.repeats):
        by_repeat = [_ratio(run, tokens_per_second(plain.run(repeat).steps)) for run, repeat in zip(lane.runs, lane.repeats, strict=True)]
        return _known(by_repeat), "repeat" if _known(by_repeat) else ""
    middle = spread(tokens_per_second(run.steps) for run in plain.runs)
    by_median = [_ratio(run, middle.median if middle else None) for run in lane.runs]
    return _known(by_median), "median" if _known(by_median) else ""


def speed_points(lanes: Sequence[Lane]) -> list[LivePoint]:
    """One point a whole run whose speedup is known, for the chart of a race that is over."""
    whole = [lane.whole for lane in lanes]
    plain, points = yardstick_lane(whole), []
    for lane in whole:
        for run, repeat in zip(lane.runs, lane.repeats, strict=True):
            found, against = speedups(replace(lane, runs=(run,), repeats=(repeat,)), plain)
            points += [LivePoint(lane.label, repeat, value, tokens_per_second(run.steps), against != "repeat") for value in found]
    return points


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and greatest of the values that exist; None without one."""
    known = _known(values)
    return Spread(float(np.median(known)), min(known), max(known), len(known)) if known else None


def race_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The table at full precision, for the CSV: seconds in seconds, a Spread as three columns."""
    records = []
    for row in rows:
        record: dict[str, object] = {}
        for field in fields(Row):
            value = getattr(row, field.name)
            if field.name == "difference":
                record |= {"difference_position": getattr(value, "position", None), "difference_top2_gap": getattr(value, "top2_gap", None),
                           "difference_token_ar": getattr(value, "yardstick_token", None), "difference_token": getattr(value, "token", None)}
            elif isinstance(value, Spread) or value is None and field.name != "identical":
                name = field.name + ("_seconds" if field.name in (*STAGES, "prefill") else "")
                record |= {f"{name}_{part}": getattr(value, part, None) for part in ("median", "low", "high")}
            else:
                record[field.name] = value
        records.append(record)
    return pd.DataFrame(records)


def _row(lane: Lane, plain: Lane | None, greedy: bool) -> Row:
    ratios, against = speedups(lane, plain)
    stages = {name: spread(_step_mean(run, name) for run in lane.runs) for name in STAGES}
    compared = greedy and plain is not None and len(lane.runs) > 0
    differences = [first_difference(plain.run(repeat) or plain.runs[plain.median], run, repeat)
                   for run, repeat in zip(lane.runs, lane.repeats, strict=True)] if compared else []
    return Row(
        lane.label, lane.method, len(lane.runs), spread(len(output_ids(run.steps)) for run in lane.runs),
        spread(ratios), against, spread(tau(run.steps) for run in lane.runs),
        spread(tokens_per_second(run.steps) for run in lane.runs), spread(_nodes(run) for run in lane.runs), **stages,
        prefill=spread(seconds_prefill(run.steps) or None for run in lane.runs),
        identical=differences.count(None) if compared else None,
        difference=next((found for found in differences if found is not None), None))


def _step_mean(run: Run, stage: str) -> float | None:
    rounds = decode_steps(run.steps)
    return sum(getattr(step.seconds, stage) for step in rounds) / len(rounds) if rounds else None


def _nodes(run: Run) -> float | None:
    rounds = decode_steps(run.steps)
    return sum(step.nodes for step in rounds) / len(rounds) if rounds else None


def _ratio(run: Run, plain: float | None) -> float | None:
    own = tokens_per_second(run.steps)
    return own / plain if own is not None and plain else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None]
