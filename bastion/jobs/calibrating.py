"""Measuring this device as a job: on the device's queue, with words, share, remaining time and a stop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bastion.jobs.engine_import import import_engine
from bastion.jobs.job import CALIBRATING, Job
from bastion.jobs.job_manager import JobManager
from bastion.jobs.request import PairChoice
from bastion.jobs.runner import Engine, load
from bastion.jobs.work import Work
from bastion.latency import Calibration, ProbeGrid

JOB_ID = "calibration"
"""One at a time: a second request joins the one that runs, and a reloaded page finds it again."""


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """Which pair to time, and how thoroughly. grid: another grid in place of the standard ones."""

    pair: PairChoice = PairChoice()
    quick: bool = True
    grid: ProbeGrid | None = None

    def check(self) -> CalibrationRequest:
        if self.grid is not None:
            self.grid.check()
        return self

    def options(self) -> dict[str, Any]:
        """What `Engine.calibrate` is told beyond its own default, the quick grid."""
        options: dict[str, Any] = {} if self.quick else {"quick": False}
        return options if self.grid is None else {**options, "grid": self.grid}


def start_calibration(manager: JobManager, request: CalibrationRequest) -> str:
    """Queue it behind what the device is doing; its job id. `view(id).info["made"]` is the id of the
    finished calibration (`Calibration.id`). What was stored before stays until all is measured."""
    request = request.check()
    return manager.start(request, request.pair, calibration_work(manager.engine, request), JOB_ID)


def calibration_work(engine: Engine, request: CalibrationRequest) -> Work:
    def work(job: Job) -> None:
        pair = load(job, engine, request.pair)
        job.enter(CALIBRATING, "Calibrating this device")
        calibration = engine.calibrate(pair, job.say, **request.options())
        job.calibrated(calibration)
        job.know({"made": Calibration.from_json(calibration).id})

    return work


@cache
def this_device() -> str:
    """The `device_key` that a calibration made here would have. Imports torch, which takes seconds the first time."""
    from bastion.models.device import device_name, pick_device
    return device_name(pick_device())


def preset_of(calibration: Calibration) -> str | None:
    """The preset whose pair it measured; None when nobody here knows where that pair was loaded from."""
    from bastion.models.presets import PRESETS
    for preset in PRESETS.values():
        targets, drafters = ({name, Path(name).name} for name in (preset.target, preset.drafter))
        if calibration.target in targets and calibration.drafter in drafters:
            return preset.name
    return None


def choice_for(calibration: Calibration) -> PairChoice:
    """What to load to measure this calibration's pair again; its preset must be known. The number type is asked
    for by name only where "auto" is another, or may be, so that a pair already loaded serves. Imports torch."""
    import_engine()
    from bastion.models.device import pick_device
    from bastion.models.number_type import likely_type

    preset = preset_of(calibration)
    usual = likely_type(preset or "", str(pick_device()))
    return PairChoice(preset, dtype="auto" if calibration.dtype == usual else calibration.dtype)
