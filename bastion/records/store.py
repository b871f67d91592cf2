"""The folder of runs: make, open, list, export, import."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, UTC
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from bastion.errors import UserError
from bastion.home import runs_dir
from bastion.records import trash
from bastion.records.archive import MAX_RUNS, ZipSource, pack, pack_several, unpack
from bastion.records.checks import InconsistentStep
from bastion.records.compact import whole_path, write_files
from bastion.records.decode import steps_from_tables
from bastion.records.ids import checked_run_id, new_run_id
from bastion.records.labels import checked_note, checked_title
from bastion.records.listing import PassedOver, check_id, scan
from bastion.records.live import is_held
from bastion.records.run import Run, RunSummary
from bastion.records.run_json import (
    MAX_RUN_JSON_BYTES, REWRITING, parse_run_json, plain, read_run_json, write_run_json,
)
from bastion.records.schema import INFO_DEFAULTS, RESERVED_KEYS, RUN_JSON, SCHEMA_VERSION
from bastion.records.streams import read_streams, read_vocabulary
from bastion.records.tables import read_tables
from bastion.records.totals import run_totals
from bastion.records.writer import Decode, RunWriter, TextOf


class RunStore:
    """All runs under one folder (`bastion.home.runs_dir()` unless given).

    `<id>/` is a finished run; `.<id>.partial/` is one that is being written or whose process
    died. Both are opened by the same id. `.trash-<id>/` is a deleted one that can be restored.
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
            check_id(info, run_id)
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
        return self.scan()[0]

    def scan(self) -> tuple[list[RunSummary], list[PassedOver]]:
        """The list, and the folders that were passed over though they hold a `run.json`, with the reason."""
        return scan(self.root, self.open)

    def stamp(self, run_id: str) -> tuple[int, int]:
        """Changes whenever the run's `run.json` does; UserError when there is no such run (any more)."""
        try:
            status = (self._locate(run_id)[0] / RUN_JSON).stat()
        except OSError:
            raise UserError(f"Run {run_id} has no run.json; it is damaged.") from None
        return status.st_mtime_ns, status.st_size

    def rename(self, run_id: str, title: str) -> None:
        """Give the run another title, shown in lists; UserError for an empty or overlong one."""
        self.attach(run_id, "title", checked_title(title))

    def note(self, run_id: str, note: str) -> None:
        """Keep some words with the run; empty ones take the note away. UserError for an overlong one."""
        self.attach(run_id, "note", checked_note(note))

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

    def export_zips(self, run_ids: Sequence[str], file: str | os.PathLike[str] | BinaryIO | None = None
                    ) -> bytes | None:
        """Several runs as one zip that holds an archive for each; of a single run, that archive itself."""
        if len(run_ids) == 1:
            return self.export_zip(run_ids[0], file)
        buffer = io.BytesIO() if file is None else None
        archives = ((run_id, self.export_zip(run_id)) for run_id in run_ids)
        try:
            pack_several(archives, buffer if buffer is not None else file)
        except OSError as error:
            raise UserError(f"{file} cannot be written ({error.strerror}): check the path.") from error
        return buffer.getvalue() if buffer is not None else None

    def import_zip(self, file: ZipSource) -> str:
        """Add the one exported run of an archive and return its id, as `import_zips` does."""
        return self._import(file, most=1)[0]

    def import_zips(self, file: ZipSource) -> list[str]:
        """Add the exported run or runs of an archive; their ids: their own, or new ones where taken here.

        Everything is read and checked first. Raises UserError and leaves nothing behind otherwise.
        """
        return self._import(file, most=MAX_RUNS)

    def _import(self, file: ZipSource, most: int) -> list[str]:
        scratch, new_root = self.root / f".import-{secrets.token_hex(8)}", not self.root.exists()
        try:
            scratch.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"Runs cannot be saved under {self.root} ({error.strerror or error}); "
                            "set BASTION_HOME to a folder you can write.") from None
        placed: list[str] = []
        try:
            checked = [(folder, _imported_info(folder)) for folder in unpack(file, scratch)]
            if len(checked) > most:
                raise UserError(f"The archive holds {len(checked)} runs; import it on the page Runs or by "
                                "`python -m bastion runs import`.")
            for folder, info in checked:
                placed.append(self._place(folder, info))
            return placed
        except BaseException as error:
            for run_id in placed:
                shutil.rmtree(self._final(run_id), ignore_errors=True)
            placed = []
            if isinstance(error, OSError):
                raise UserError(f"Runs cannot be saved under {self.root} ({error.strerror or error}); free some "
                                "space or set BASTION_HOME to a folder you can write.") from None
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            if new_root and not placed:
                with suppress(OSError):
                    self.root.rmdir()

    def _place(self, folder: Path, info: dict[str, Any]) -> str:
        run_id = info["id"]
        if self._final(run_id).exists() or self._hidden(run_id).exists():
            run_id = new_run_id()
            write_run_json(folder / RUN_JSON, {**info, "id": run_id, "imported_from": info["id"]})
        os.rename(folder, self._final(run_id))
        return run_id

    def delete(self, run_id: str) -> None:
        """Remove a run from disk for good, with whatever a killed process left of it; UserError while
        it is being written."""
        self._deletable(run_id)
        for left in (whole_path(self._hidden(run_id)), self._hidden(run_id), self._final(run_id)):
            shutil.rmtree(left, ignore_errors=True)

    def trash(self, run_id: str) -> None:
        """Delete a run so that `restore` brings it back, for `KEPT_DAYS` days; UserError while it is being
        written. What was deleted longer ago goes for good now."""
        trash.move_in(self._deletable(run_id), self.root, run_id)
        for left in (whole_path(self._hidden(run_id)), self._hidden(run_id)):
            shutil.rmtree(left, ignore_errors=True)
        self.empty_trash(trash.KEPT_DAYS)

    def restore(self, run_id: str) -> None:
        """Undo `trash`. UserError when it is not in the trash, or a run with its id is here again."""
        place = trash.trash_path(self.root, checked_run_id(run_id))
        if not place.is_dir():
            raise UserError(f"There is no deleted run {run_id}; it was restored, or removed for good.")
        if self._final(run_id).exists() or self._hidden(run_id).exists():
            raise UserError(f"Run {run_id} cannot be restored: a run with that id is here again; "
                            "export and delete that one first.")
        finished = (place / "steps.parquet").exists()
        trash.move_out(self.root, run_id, self._final(run_id) if finished else self._hidden(run_id))

    def trashed(self) -> list[trash.Trashed]:
        """Deleted runs that `restore` brings back, latest deletion first."""
        return trash.contents(self.root)

    def empty_trash(self, older_than_days: float = 0.0) -> list[str]:
        """Remove deleted runs for good, all or those deleted so many days ago; the ids that went."""
        return trash.empty(self.root, older_than_days)

    def _deletable(self, run_id: str) -> Path:
        folder, finished = self._locate(run_id)
        if not finished and is_held(folder):
            raise UserError(f"Run {run_id} is still being decoded; stop it before deleting it.")
        return folder

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
        if trash.trash_path(self.root, run_id).is_dir():
            raise UserError(f"Run {run_id} was deleted; undo that on the page Runs or by "
                            f"`python -m bastion runs restore {run_id}`.")
        raise UserError(f"There is no run {run_id}; `python -m bastion runs` lists those there are.")


def _imported_info(folder: Path) -> dict[str, Any]:
    """The checked run.json of an unpacked run, after every table of it was read and checked."""
    path = folder / RUN_JSON
    if path.stat().st_size > MAX_RUN_JSON_BYTES:
        raise UserError("The archive's run.json is larger than one may be; it was not imported.")
    info = parse_run_json(path.read_bytes(), "The archive's run.json")
    checked_run_id(info["id"])
    _read_finished(folder, info, "The archive's", "export the run again and choose that file")
    return info


def _read_finished(folder: Path, info: dict[str, Any], *called: str) -> Run:
    try:
        steps, pieces = steps_from_tables(read_tables(folder, *called))
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
