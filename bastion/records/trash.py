"""Deleted runs, kept beside the others for a while so that a deletion can be undone.

A run in the trash is its own folder renamed to `.trash-<id>`: one rename on the same disk, so it is in
the trash whole or not at all. The folder's modification time is the time of the deletion.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from bastion.errors import UserError
from bastion.records.ids import RUN_ID
from bastion.records.listing import folder_bytes, summarise
from bastion.records.run import RunSummary

PREFIX = ".trash-"
KEPT_DAYS = 7
"""Days after which a deleted run goes for good, at the next deletion or when the page Runs is opened."""

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Trashed:
    """A deleted run that can be restored. `summary` is None when its run.json cannot be read any more."""

    id: str
    deleted: float              # seconds since the epoch
    bytes: int
    summary: RunSummary | None


def trash_path(root: Path, run_id: str) -> Path:
    return root / f"{PREFIX}{run_id}"


def move_in(folder: Path, root: Path, run_id: str) -> None:
    """Rename the run's folder into the trash. An earlier deleted run of the same id goes for good."""
    place = trash_path(root, run_id)
    shutil.rmtree(place, ignore_errors=True)
    try:
        os.utime(folder)
        os.rename(folder, place)
    except OSError as error:
        raise UserError(f"Run {run_id} cannot be deleted ({error.strerror or error}); "
                        f"check that {root} can be written.") from None


def move_out(root: Path, run_id: str, folder: Path) -> None:
    """Rename it back to `folder`."""
    try:
        os.rename(trash_path(root, run_id), folder)
    except OSError as error:
        raise UserError(f"Run {run_id} cannot be restored ({error.strerror or error}); "
                        f"check that {root} can be written.") from None


def contents(root: Path) -> list[Trashed]:
    """What can be restored, latest deletion first."""
    found = []
    try:
        names = [entry.name for entry in os.scandir(root) if entry.name.startswith(PREFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    for name in names:
        run_id = name.removeprefix(PREFIX)
        if not RUN_ID.fullmatch(run_id):   # the hidden folder of a run whose id begins with "trash-" has a dot
            continue
        try:
            deleted = (root / name).stat().st_mtime
        except OSError:
            continue
        try:
            summary = summarise(root / name, run_id)
        except UserError:
            summary = None
        found.append(Trashed(run_id, deleted, folder_bytes(root / name), summary))
    return sorted(found, key=lambda one: (one.deleted, one.id), reverse=True)


def empty(root: Path, older_than_days: float = 0.0) -> list[str]:
    """Remove deleted runs for good, all or those deleted so many days ago; the ids that went."""
    limit = time.time() - older_than_days * _DAY
    gone = [one.id for one in contents(root) if one.deleted <= limit]
    for run_id in gone:
        shutil.rmtree(trash_path(root, run_id), ignore_errors=True)
    return gone
