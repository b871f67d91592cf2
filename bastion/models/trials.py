"""Questions that only a trial on this machine answers, and the answers kept on disk, so that each is tried once.

An answer holds for one processor, number of threads, set of libraries and state of the code in this folder; anything else is tried anew.
What is damaged or cannot be read counts as not tried yet.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bastion.home import trials_dir
from bastion.models.device import device_name

log = logging.getLogger(__name__)

LIBRARIES = ("torch", "transformers", "numpy", "numba")
SETTINGS = ("ONEDNN_", "DNNL_", "MKL_", "NUMBA_", "ATEN_CPU_")
"""Beginnings of environment variables that change how libraries calculate."""
PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that tell processors of one name apart."""


def tried(question: str, about: Mapping[str, Any], ask: Callable[[], bool]) -> bool:
    """What `ask` says, asked only when no answer is kept for this question about these plain values on this machine."""
    known = answer(question, about)
    if known is not None:
        return known
    found = bool(ask())
    file = _file(question, about)
    beside = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = {"question": question, "about": dict(about), "on": _here(), "answer": found}
        beside.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        os.replace(beside, file)
    except OSError as error:
        log.warning("What was tried (%s) could not be kept in %s (%s); it is tried again next time.", question, file.parent, error.strerror)
    return found


def answer(question: str, about: Mapping[str, Any]) -> bool | None:
    """The answer kept; None where this was not tried yet."""
    try:
        found = json.loads(_file(question, about).read_text(encoding="utf-8"))["answer"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, bool) else None


def _file(question: str, about: Mapping[str, Any]) -> Path:
    key = json.dumps([question, dict(about), _here()], sort_keys=True)
    return trials_dir() / f"{question}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _here() -> dict[str, Any]:
    """What an answer depends on beside the question."""
    return {"processor": device_name(torch.device("cpu")), "kind": _kind_of_processor(), "threads": torch.get_num_threads(),
            "libraries": _libraries(), "settings": {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)},
            "code": _code()}


@cache
def _kind_of_processor() -> str:
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        first = ""
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip() in PROCESSOR]
    return hashlib.sha256("\n".join([platform.machine(), platform.processor(), *lines]).encode()).hexdigest()[:16]


@cache
def _libraries() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


@cache
def _code() -> str:
    """A digest of the forward's own code: when it changes, what it was found to do is no longer known."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
