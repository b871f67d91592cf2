"""The list of runs: summaries read from `run.json` alone, sizes on disk, and what was passed over and why."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bastion.records.ids import RUN_ID
from bastion.records.live import is_held
from bastion.records.run import Run, RunSummary
from bastion.records.run_json import read_run_json
from bastion.records.schema import RUN_JSON

_summaries: dict[tuple[str, int, int], RunSummary] = {}
_killed: dict[tuple[str, RunSummary], RunSummary] = {}


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A folder that holds a `run.json` and is not listed: its name, and why in one sentence."""

    name: str
    reason: str


def scan(root: Path, open_run: Callable[[str], Run]) -> tuple[list[RunSummary], list[PassedOver]]:
    """Summaries of all readable runs under `root`, newest first, and what cannot be opened as a run.

    `open_run` is asked once for a run that a killed process left behind: its `run.json` has no totals.
    """
    summaries, passed_over = [], []
    try:
        entries = {entry.name for entry in os.scandir(root)}
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    for name in sorted(entries):
        run_id = name.removeprefix(".").removesuffix(".partial")
        if not RUN_ID.fullmatch(run_id) or name not in (run_id, f".{run_id}.partial"):
            continue
        if name != run_id and run_id in entries:
            continue  # finished: what is left of the hidden folder is about to go
        try:
            summary = summarise(root / name, run_id)
        except UserError as error:
            if (root / name / RUN_JSON).is_file():
                passed_over.append(PassedOver(name, str(error)))
            continue
        if name != run_id:
            summary = replace(summary, bytes=folder_bytes(root / name))
            if not is_held(root / name):
                summary = _totalled(root, summary, open_run)
        summaries.append(summary)
    return sorted(summaries, key=lambda summary: (summary.created, summary.id), reverse=True), passed_over


def summarise(folder: Path, run_id: str) -> RunSummary:
    """From the cache while `run.json` has not changed: vocabularies make these files long.

    UserError when it cannot be read, or is that of another run: a folder copied by hand keeps the id
    inside, and two rows that open one run would be worse than a row less.
    """
    path = folder / RUN_JSON
    try:
        status = path.stat()
    except OSError:
        raise UserError(f"{path} cannot be read.") from None
    key = (str(path), status.st_mtime_ns, status.st_size)
    if key not in _summaries:
        info = read_run_json(path)
        check_id(info, run_id)
        _summaries[key] = _from_info(info, folder_bytes(folder))
    return _summaries[key]


def check_id(info: dict[str, Any], run_id: str) -> None:
    """UserError when a folder named `run_id` holds another run."""
    if info["id"] != run_id:
        raise UserError(f"The folder of run {run_id} holds another run ({info['id'][:80]!r}); give it its own name back.")


def folder_bytes(folder: Path) -> int:
    """What the files in `folder` take on disk, in bytes; 0 for a folder that is gone."""
    total = 0
    try:
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False):
                total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        pass  # a run that is being finished or deleted under our hands: the next look counts it
    return total


def _from_info(info: dict[str, Any], size: int) -> RunSummary:
    totals, group, note = info["totals"], info["group"] or {}, info.get("note")
    tokens, rule = _number(totals.get("tokens")), info["sampling"].get("acceptance")
    return RunSummary(
        id=info["id"], created=info["created"], title=info["title"], pair=info["pair"],
        method=info["method"], device=info["device"], dtype=info["dtype"],
        complete=info["complete"], finish_reason=info["finish_reason"],
        tokens=None if tokens is None else int(tokens), tau=_number(totals.get("tau")),
        tokens_per_second=_number(totals.get("tokens_per_second")), note=note if isinstance(note, str) else "",
        temperature=_number(info["sampling"].get("temperature")), prompt_set=info["prompt_set"],
        acceptance=rule if isinstance(rule, str) else "",
        group=str(group.get("kind", "")), group_id=str(group.get("id", "")), bytes=size)


def _number(value: Any) -> float | None:
    """A finite number, or None: a run may come from elsewhere, and JSON's integers have no end."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _totalled(root: Path, summary: RunSummary, open_run: Callable[[str], Run]) -> RunSummary:
    """A killed run with the totals that its run.json does not have, none when it is damaged. Nobody writes to
    such a run any more, so it is read once: pages list runs at every rerun."""
    key = (str(root), summary)
    if key not in _killed:
        try:
            totals = open_run(summary.id).info["totals"]
        except UserError:
            totals = {}
        known = {name: totals.get(name) for name in ("tokens", "tau", "tokens_per_second")}
        _killed[key] = replace(summary, finish_reason="killed", **known)
    return _killed[key]
