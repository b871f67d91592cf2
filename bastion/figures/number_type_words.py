"""The number type of a run, and why it was that one, as pages and commands say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number_type_words(info: Mapping[str, Any]) -> str:
    """Such as `bfloat16 (measured faster here; a tree's tokens have the bits of plain decoding)`, from what run.json holds;
    the type alone for runs that do not say why."""
    dtype, why = str(info.get("dtype") or ""), str(info.get("dtype_why") or "")
    return f"{dtype} ({why})" if dtype and why else dtype
