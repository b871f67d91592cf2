"""The folder of runs: make, open, list, export, import."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, UTC
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from bastion.errors import UserError
from bastion.home import runs_dir
from bastion.records.archive import ZipSource, pack, unpack
from bastion.records.checks import InconsistentStep
from bastion.records.compact import whole_path, write_files
from bastion.records.decode import steps_from_tables
from bastion.records.ids import RUN_ID, checked_run_id, new_run_id
from bastion.records.live import is_held
from bastion.records.run import Run, RunSummary
from bastion.records.run_json import REWRITING, plain, read_run_json, write_run_json
from bastion.records.schema import INFO_DEFAULTS, RESERVED_KEYS, RUN_JSON, SCHEMA_VERSION
from bastion.records.streams import read_streams, read_vocabulary
from bastion.records.tables import read_tables
from bastion.records.totals import run_totals
from bastion.records.writer import Decode, RunWriter, TextOf

_summaries: dict[tuple[str, int, int], RunSummary] = {}
_killed_summaries: dict[tuple[str, RunSummary], RunSummary] = {}


class RunStore:
    """All runs under one folder (`bastion.home.runs_dir()` unless given).

    `<id>/` is a finished run; `.<id>.partial/` is one that is being written or whose process
    died. Both are opened by the same id.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root) if root is not None else runs_dir()

    def create(self, info: Mapping[str, Any], run_id: str | None = None,
               text_of: TextOf | None = None, decode: Decode | None = None) -> RunWriter:
        """Start a run. `info` holds what `INFO_DEFAULTS` names; unknown keys are kept.

        `text_of(ids) -> list[str]` gives each id's own text, `decode(ids) -> str` the text of a
        sequence. Raises UserError when the id is taken or the folder cannot be written.
        """
        run_id = checked_run_id(run_id) if run_id is not None else new_run_id()
        full = {**INFO_DEFAULTS, **info, "schema_version": SCHEMA_VERSION, "id": run_id,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "complete": False, "vocabulary": {}, "totals": {}, "finish_reason": None,
                "text": ""}
        hidden = self._hidden(run_id)
        if self._final(run_id).exists() or hidden.exists():
            raise UserError(f"A run {run_id} exists already; choose another id or delete it first.")
        try:
            hidden.mkdir(parents=True)
            return RunWriter(hidden, self._final(run_id), full, text_of, decode)
        except OSError as error:
            raise UserError(f"The run cannot be saved under {self.root} ({error.strerror or error}); "
                            "free some space or set BASTION_HOME to a folder you can write.") from None

    def open(self, run_id: str) -> Run:
        """Read and check one run, finished or not (`complete` is False then, and `finish_reason`
        is "killed", or None while some process is still writing it).

        Raises UserError when there is none, when it is damaged, or when a newer version wrote it.
        """
        folder, finished = self._locate(run_id)
        try:
            info = read_run_json(folder / RUN_JSON)
            if info["id"] != run_id:
                raise UserError(f"The folder of run {run_id} holds another run "
                                f"({info['id'][:80]!r}); give it its own name back.")
            run = (_read_finished if finished else _read_partial)(folder, info)
        except UserError:
            if finished or not self._final(run_id).is_dir():
                raise
            return self.open(run_id)
        if not finished and self._final(run_id).is_dir():  # it was finished under our hands
            return self.open(run_id)
        return run

    def list(self) -> list[RunSummary]:
        """Summaries of all readable runs, newest first; a folder that is no run is passed over.

        `finish_reason` is None for a run that is being written now.
        """
        summaries = []
        try:
            entries = sorted(entry.name for entry in os.scandir(self.root))
        except FileNotFoundError:
            return []
        for name in entries:
            run_id = name.removeprefix(".").removesuffix(".partial")
            if not RUN_ID.fullmatch(run_id) or name not in (run_id, f".{run_id}.partial"):
                continue
            if name != run_id and run_id in entries:
                continue  # finished: what is left of the hidden folder is about to go
            try:
                summary = _summary(self.root / name / RUN_JSON)
            except UserError:
                continue
            if name != run_id and not is_held(self.root / name):
                summary = self._killed(summary)
            summaries.append(summary)
        return sorted(summaries, key=lambda summary: (summary.created, summary.id), reverse=True)

    def _killed(self, summary: RunSummary) -> RunSummary:
        """With the totals that its run.json does not have, none when it is damaged. Nobody writes to such
        a run any more, so it is read once: pages list runs at every rerun."""
        key = (str(self.root), summary)
        if key not in _killed_summaries:
            try:
                totals = self.open(summary.id).info["totals"]
            except UserError:
                totals = {}
            known = {name: totals.get(name) for name in ("tokens", "tau", "tokens_per_second")}
            _killed_summaries[key] = replace(summary, finish_reason="killed", **known)
        return _killed_summaries[key]

    def attach(self, run_id: str, key: str, value: Any) -> None:
        """Set one key of a run's `run.json`, for what becomes known after the run (a yardstick, a
        note). The file is replaced whole. Keys that the writer owns are refused with ValueError."""
        if key in RESERVED_KEYS:
            raise ValueError(f"{key!r} is written with the run and cannot be attached")
        with REWRITING:
            folder, _ = self._locate(run_id)
            info = read_run_json(folder / RUN_JSON)
            write_run_json(folder / RUN_JSON, {**info, key: value})

    def attach_yardstick(self, run_id: str, yardstick: Mapping[str, Any]) -> None:
        """Attach plain decoding's speed on the same prompt: `tokens_per_second`, or `tokens` and
        `seconds` of its decode steps; optionally the `run_id` it was recorded under."""
        full = dict(yardstick)
        if "tokens_per_second" not in full:
            seconds = full["seconds"]
            full["tokens_per_second"] = full["tokens"] / seconds if seconds > 0 else None
        self.attach(run_id, "yardstick", full)

    def export_zip(self, run_id: str, file: str | os.PathLike[str] | BinaryIO | None = None
                   ) -> bytes | None:
        """The run as a zip of its five files: into `file`, or returned when there is none.

        A run that was cut short is exported as far as it came, with `complete` false.
        """
        run = self.open(run_id)
        folder, finished = self._locate(run_id)
        buffer = io.BytesIO() if file is None else None
        with tempfile.TemporaryDirectory() as scratch:
            if not finished:
                write_files(folder, Path(scratch), complete=False,
                            finish_reason=run.info["finish_reason"] or "unfinished")
                folder = Path(scratch)
            try:
                pack(folder, buffer if buffer is not None else file)
            except OSError as error:
                raise UserError(f"{file} cannot be written ({error.strerror}): check the path.") from error
        return buffer.getvalue() if buffer is not None else None

    def import_zip(self, file: ZipSource) -> str:
        """Add an exported run and return its id: its own, or a new one when that is taken here.

        Everything is read and checked first. Raises UserError and leaves nothing behind otherwise.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        scratch = self.root / f".import-{secrets.token_hex(8)}"
        scratch.mkdir()
        try:
            unpack(file, scratch)
            info = read_run_json(scratch / RUN_JSON)
            run_id = checked_run_id(info["id"])
            _read_finished(scratch, info)
            if self._final(run_id).exists() or self._hidden(run_id).exists():
                run_id = new_run_id()
                write_run_json(scratch / RUN_JSON,
                               {**info, "id": run_id, "imported_from": info["id"]})
            os.rename(scratch, self._final(run_id))
            return run_id
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def delete(self, run_id: str) -> None:
        """Remove a run from disk, with whatever a killed process left of it; UserError while it is
        being written."""
        folder, finished = self._locate(run_id)
        if not finished and is_held(folder):
            raise UserError(f"Run {run_id} is still being decoded; stop it before deleting it.")
        for left in (whole_path(self._hidden(run_id)), self._hidden(run_id), self._final(run_id)):
            shutil.rmtree(left, ignore_errors=True)

    def _final(self, run_id: str) -> Path:
        return self.root / run_id

    def _hidden(self, run_id: str) -> Path:
        return self.root / f".{run_id}.partial"

    def _locate(self, run_id: str) -> tuple[Path, bool]:
        """The run's folder, and whether it is a finished one."""
        checked_run_id(run_id)
        if self._final(run_id).is_dir():
            return self._final(run_id), True
        if (self._hidden(run_id) / RUN_JSON).is_file():
            return self._hidden(run_id), False
        raise UserError(f"There is no run {run_id}; `python -m bastion runs` lists those there are.")


def _read_finished(folder: Path, info: dict[str, Any]) -> Run:
    try:
        steps, pieces = steps_from_tables(read_tables(folder))
    except InconsistentStep as error:
        raise UserError(f"Run {info['id']} is damaged and cannot be opened: {error}.") from None
    return Run(info, steps, pieces)


def _read_partial(folder: Path, info: dict[str, Any]) -> Run:
    try:
        steps, pieces = steps_from_tables(read_streams(folder))
        vocabulary = read_vocabulary(folder)
    except (InconsistentStep, pa.ArrowException, ValueError) as error:
        raise UserError(f"What run {info['id']} left behind is damaged: {error}.") from None
    text = "".join(piece for texts in pieces for piece in texts)
    return Run({**info, "totals": plain(run_totals(steps)), "vocabulary": vocabulary, "text": text,
                "finish_reason": None if is_held(folder) else "killed"}, steps, pieces)


def _summary(path: Path) -> RunSummary:
    """From the cache while the file has not changed: vocabularies make these files long."""
    try:
        status = path.stat()
    except OSError:
        raise UserError(f"{path} cannot be read.") from None
    key = (str(path), status.st_mtime_ns, status.st_size)
    if key not in _summaries:
        info = read_run_json(path)
        totals, group = info["totals"], info["group"] or {}
        temperature = info["sampling"].get("temperature")
        _summaries[key] = RunSummary(
            id=info["id"], created=info["created"], title=info["title"], pair=info["pair"],
            method=info["method"], device=info["device"], dtype=info["dtype"],
            complete=info["complete"],
            finish_reason=info["finish_reason"],
            tokens=totals.get("tokens"), tau=totals.get("tau"),
            tokens_per_second=totals.get("tokens_per_second"), note=str(info.get("note", "")),
            temperature=float(temperature) if isinstance(temperature, (int, float)) else None,
            prompt_set=info["prompt_set"], group=str(group.get("kind", "")), group_id=str(group.get("id", "")))
    return _summaries[key]
