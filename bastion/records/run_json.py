"""Reading and writing `run.json`: strict JSON, whole or not at all."""

from __future__ import annotations

import json
import math
import os
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from bastion.errors import UserError
from bastion.records.checks import MAX_TOKEN_ID
from bastion.records.schema import INFO_DEFAULTS, SCHEMA_VERSION

MAX_RUN_JSON_BYTES = 64 * 2**20
MAX_INTEGER = 2**63 - 1
"""Whole numbers beyond 64 bits fit no array, and beyond about 1e308 no float either."""
MAX_DRAFTER_DEPTH = 4096
"""Far more than any drafter drafts; histograms have a place for every depth."""

REWRITING = threading.Lock()
"""Held while a run.json is read, changed and put back, so that no thread undoes another's change."""


def write_run_json(path: Path, info: dict[str, Any]) -> None:
    """Write beside `path`, then rename over it, so that a reader never sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    text = json.dumps(plain(info), ensure_ascii=True, allow_nan=False, indent=1)
    beside.write_text(text, encoding="ascii")
    os.replace(beside, path)


def read_run_json(path: Path) -> dict[str, Any]:
    """The checked object, defaults filled in; UserError that names the file otherwise."""
    try:
        if path.stat().st_size > MAX_RUN_JSON_BYTES:
            raise UserError(f"{path} is larger than a run.json may be; it was not read.")
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); "
                        "the run is missing or damaged.") from None
    return parse_run_json(raw, str(path))


def parse_run_json(raw: bytes, name: str) -> dict[str, Any]:
    """Parse and check the bytes of a run.json; `name` is used in messages."""
    try:
        info = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, parse_int=_whole, parse_float=_finite)
    except OverflowError:
        raise UserError(f"{name} holds a number that is out of range; the run is damaged and cannot be opened.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{name} is not valid JSON; the run is damaged and cannot be opened.") from None
    if not isinstance(info, dict):
        raise UserError(f"{name} does not hold a run; choose a run that BASTION Studio wrote.")
    version = info.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UserError(f"{name} has no schema version; choose a run that BASTION Studio wrote.")
    if version > SCHEMA_VERSION:
        raise UserError(f"{name} was written by a newer version (schema {version}, this one reads "
                        f"up to {SCHEMA_VERSION}); update BASTION Studio to open it.")
    info = {**json.loads(json.dumps(INFO_DEFAULTS)), **info}
    _check_types(info, name)
    return info


def _check_types(info: dict[str, Any], name: str) -> None:
    wrong = [key for key, kind in (
        ("id", str), ("created", str), ("complete", bool), ("title", str), ("pair", str),
        ("method", str), ("device", str), ("dtype", str), ("dtype_why", str), ("text", str), ("sampling", dict),
        ("prompt_set", str), ("prompt_id", str),
        ("versions", dict), ("totals", dict), ("vocabulary", dict), ("prompt_ids", list))
        if not isinstance(info.get(key), kind)]
    for key, kind in (("yardstick", dict), ("calibration", dict), ("finish_reason", str), ("group", dict)):
        if info[key] is not None and not isinstance(info[key], kind):
            wrong.append(key)
    if not wrong:
        if not _are_ids(info["prompt_ids"]):
            wrong.append("prompt_ids")
        if not _is_vocabulary(info["vocabulary"]):
            wrong.append("vocabulary")
        if not all(_is_number_or_none(value) for value in info["totals"].values()):
            wrong.append("totals")
        if not _is_number_or_none((info["yardstick"] or {}).get("tokens_per_second")):
            wrong.append("yardstick")
        if not _is_depth(info.get("drafter_depth")):
            wrong.append("drafter_depth")
        if not _is_time(info["created"]):
            wrong.append("created")
    if wrong:
        raise UserError(f"{name} is damaged: {wrong[0]!r} is missing or of the wrong kind.")


# Whole columns at a time: a vocabulary has thousands of entries and a list of runs hundreds of vocabularies.
def _are_ids(values: list[Any]) -> bool:
    return set(map(type, values)) <= {int} and min(values, default=0) >= 0 and max(values, default=0) <= MAX_TOKEN_ID


def _is_vocabulary(texts: dict[str, Any]) -> bool:
    digits = "".join(texts)
    return not texts or "" not in texts and digits.isascii() and digits.isdigit() and set(map(type, texts.values())) <= {str}


def _is_number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _is_depth(value: Any) -> bool:
    """A key that older runs lack, so that what is no number at all is left to its readers."""
    return not isinstance(value, int) or 0 <= value <= MAX_DRAFTER_DEPTH


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def plain(value: Any) -> Any:
    """JSON-able copy: numpy values become Python's, NaN and infinities become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} cannot stand in run.json: {value!r}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _whole(digits: str) -> int:
    # Python itself refuses thousands of digits, with a ValueError that would read as "not JSON".
    value = int(digits) if len(digits) <= 20 else MAX_INTEGER + 1
    if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        raise OverflowError("an integer beyond 64 bits")
    return value


def _finite(digits: str) -> float:
    """JSON knows no infinity, but 1e400 would become one."""
    value = float(digits)
    if not math.isfinite(value):
        raise OverflowError("a number beyond a float's range")
    return value
