"""Where models, calibrations and runs live on the user's disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def home() -> Path:
    """`BASTION_HOME` when set, else the user's cache folder for this platform."""
    override = os.environ.get("BASTION_HOME")
    if override:
        return Path(override).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bastion"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "bastion"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bastion"


def models_dir() -> Path:
    return home() / "models"


def calibrations_dir() -> Path:
    return home() / "calibrations"


def runs_dir() -> Path:
    return home() / "runs"


def races_dir() -> Path:
    return home() / "races"


def benchmarks_dir() -> Path:
    return home() / "benchmarks"


def trials_dir() -> Path:
    """What was tried on this machine, such as which number type is faster."""
    return home() / "trials"
