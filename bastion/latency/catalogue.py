"""The calibrations stored on this machine: one JSON file for each device and pair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bastion.errors import UserError
from bastion.home import calibrations_dir
from bastion.latency.calibration import Calibration


@dataclass(frozen=True, slots=True)
class StoredCalibrations:
    """What a folder holds: calibrations with their files, newest first, and a sentence per damaged file."""

    found: list[tuple[Calibration, Path]]
    damaged: list[str]


def stored_calibrations(folder: Path | None = None) -> StoredCalibrations:
    """Every calibration in `folder` (`calibrations_dir()` unless given). A missing folder is an empty one."""
    folder = calibrations_dir() if folder is None else folder
    found, damaged = [], []
    for path in sorted(folder.glob("*.json")):
        if path.name.startswith("."):
            continue
        try:
            found.append((Calibration.load(path), path))
        except UserError as error:
            damaged.append(str(error))
    return StoredCalibrations(sorted(found, key=lambda pair: made(pair[0]), reverse=True), damaged)


def newest_first(calibrations: Iterable[Calibration]) -> list[Calibration]:
    return sorted(calibrations, key=made, reverse=True)


def made(calibration: Calibration) -> datetime:
    """When it was made, UTC; the beginning of time for one that does not say so readably."""
    return moment(calibration.made_at) or datetime.min.replace(tzinfo=UTC)


def moment(iso: str) -> datetime | None:
    """An ISO 8601 time, taken as UTC where it names no zone; None when it is none."""
    try:
        time = datetime.fromisoformat(iso)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
