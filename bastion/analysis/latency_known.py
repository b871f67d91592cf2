"""Every calibration that can be shown here: stored on this machine, carried by a saved run, or shipped for its kind of device."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bastion.latency import Calibration, made, shipped_profiles, stored_calibrations
from bastion.records import RunStore
from bastion.records.run_json import read_run_json

MOST_RUNS = 200


@dataclass(frozen=True, slots=True)
class KnownCalibration:
    """path: its file when it is stored on this machine; runs: saved runs that carry it, newest first. Without either
    it is a shipped profile (`Calibration.shipped`, which a run's may be as well)."""

    calibration: Calibration
    path: Path | None = None
    runs: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.calibration.id


@dataclass(frozen=True, slots=True)
class Known:
    """found: newest first. damaged: a sentence for each file or run whose calibration cannot be read.
    summaries: runs of older versions, which hold a summary of theirs and no probes."""

    found: list[KnownCalibration]
    damaged: list[str]
    summaries: list[str]

    def newest(self, device: str | None = None) -> KnownCalibration | None:
        """The newest that was measured on `device` (a calibration's `device_key`) and is stored here; without
        one the newest profile shipped for it, the newest stored here, then the newest that a run carries."""
        stored = [known for known in self.found if known.path is not None]
        own = [known for known in stored if known.calibration.device_key == device]
        shipped = [known for known in self.found if known.calibration.shipped and known.calibration.device_key == device]
        return next(iter(own or shipped or stored or self.found), None)


def known_calibrations(store: RunStore, folder: Path | None = None, device: str | None = None) -> Known:
    """Those in `folder` (this machine's, unless given), those in the newest MOST_RUNS runs of the store, and the profiles
    shipped for `device`; for every device when it is None."""
    stored = stored_calibrations(folder)
    known = {calibration.id: KnownCalibration(calibration, path) for calibration, path in stored.found}
    damaged, summaries = list(stored.damaged), []
    for run_id in [run.id for run in store.list() if run.complete][:MOST_RUNS]:
        try:
            calibration = _carried(store.root / run_id / "run.json", run_id)
        except UserError as error:
            damaged.append(str(error))
            continue
        if isinstance(calibration, Calibration):
            known.setdefault(calibration.id, KnownCalibration(calibration)).runs.append(run_id)
        elif calibration:
            summaries.append(run_id)
    for profile, _ in shipped_profiles().found:
        if device in (None, profile.device_key):
            known.setdefault(profile.id, KnownCalibration(profile))
    return Known(sorted(known.values(), key=lambda one: made(one.calibration), reverse=True), damaged, summaries)


def carried(content: Any, name: str) -> Calibration | bool:
    """The calibration that run.json's key `calibration` holds; True when it is an older version's summary,
    False when there is none. UserError when it is damaged."""
    if not content or not isinstance(content, dict):
        return False
    if "probes" not in content and "roofline" not in content:
        return True
    return Calibration.from_json(content, name)


_read: dict[tuple[str, int, int], Calibration | bool] = {}


def _carried(path: Path, run_id: str) -> Calibration | bool:
    """Read once for each state of the file: vocabularies make these files long."""
    try:
        status = path.stat()
    except OSError:
        return False
    key = str(path), status.st_mtime_ns, status.st_size
    if key not in _read:
        _read[key] = carried(read_run_json(path).get("calibration"), f"The calibration in run {run_id}")
    return _read[key]
