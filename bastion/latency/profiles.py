"""Device profiles shipped in `assets/profiles`: calibrations made elsewhere, to begin from where none was made here.

A profile is a calibration's JSON, as `bench/gpu_check.sh` writes it on a device of that name. It stands in for a
target of the same sizes in the same number type under the same attention, and says that it does (`Calibration.shipped`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bastion.latency.calibration import Calibration
from bastion.latency.catalogue import StoredCalibrations, stored_calibrations
from bastion.latency.shape import ModelShape

PROFILES = Path(__file__).resolve().parents[2] / "assets" / "profiles"


def shipped_profiles(folder: Path | None = None) -> StoredCalibrations:
    """All of them, newest first, marked as shipped. A missing folder is an empty one."""
    stored = stored_calibrations(PROFILES if folder is None else folder)
    return StoredCalibrations([(replace(profile, shipped=True), path) for profile, path in stored.found], stored.damaged)


def find_profile(
    device_key: str, shape: ModelShape, dtype: str, attention: str, target: str = "", drafter: str = "", folder: Path | None = None
) -> Calibration | None:
    """The profile for this device and these sizes, or None: of the target and drafter of these names where there is one,
    else of any of the sizes, the newest first."""
    fitting = [profile for profile, _ in shipped_profiles(folder).found
               if (profile.device_key, profile.shape, profile.dtype, profile.attention) == (device_key, shape, dtype, attention)]
    # a stable sort: the newest stays first among equals
    return min(fitting, key=lambda profile: (profile.target != target, profile.drafter != drafter), default=None)


def shipped_words(calibration: Calibration) -> str:
    """What stands where a profile is used in place of a calibration of one's own."""
    of = calibration.target + (f" and {calibration.drafter}" if calibration.drafter else "")
    return (f"No calibration was made here. A profile shipped with BASTION Studio is used in its place, measured elsewhere on "
            f"{calibration.device_name or calibration.device_key} with {of}; `python -m bastion calibrate` measures this device.")
