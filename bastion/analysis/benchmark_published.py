"""Published results beside ours: only numbers that were read in their source, each with that source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "assets" / "published" / "bastion.json"


@dataclass(frozen=True, slots=True)
class Published:
    """One value of a paper's table. `prompt_set` is a set's name or "mean"; tau or speedup may be unknown."""

    prompt_set: str
    method: str
    temperature: float
    speedup: float | None
    tau: float | None
    target: str
    device: str
    note: str
    source: str


@cache
def published() -> tuple[Published, ...]:
    """All published values that ship with the program."""
    return tuple(Published(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))["rows"])


@cache
def published_gap() -> str:
    """One line that says what of the paper's tables is not among them."""
    return str(json.loads(FILE.read_text(encoding="utf-8"))["missing"])
