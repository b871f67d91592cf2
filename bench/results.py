"""One JSON file that grows with every unit measured, so that a benchmark that was killed goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from bastion.errors import UserError

VERSION = 1


class Results:
    """`about`: what must be the same for a file to be continued (settings); `facts`: what is worth knowing besides.

    file None keeps everything in memory. Raises UserError for a file of other settings, one that is damaged, and a
    folder that cannot be written in.
    """

    def __init__(self, file: Path | None, about: dict[str, Any], facts: dict[str, Any]) -> None:
        self.file = file
        self.content: dict[str, Any] = {"version": VERSION, "about": about, "facts": facts, "units": {}, "tables": {}}
        if file is not None and not os.access(file.absolute().parent, os.W_OK):
            raise UserError(f"{file} cannot be written: name a file in a folder that is there and yours.")
        if file is not None and file.exists():
            self._go_on(file, about)

    def _go_on(self, file: Path, about: dict[str, Any]) -> None:
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            same = found["version"] == VERSION and found["about"] == json.loads(json.dumps(about)) and isinstance(found["units"], dict)
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{file} is no result of this benchmark: name another file, or delete it.") from None
        if not same:
            raise UserError(f"{file} holds results of other settings: name another file, or delete it.")
        self.content = found

    def unit(self, stage: str, key: str, work: Callable[[], Any]) -> Any:
        """What `work` gives, measured now unless the file has it; plain values. The seconds that a stage's units took
        are added up in the facts, over all sittings."""
        units, seconds = self.content["units"].setdefault(stage, {}), self.content["facts"].setdefault("seconds", {})
        if key not in units:
            begun = perf_counter()
            units[key] = work()
            seconds[stage] = seconds.get(stage, 0.0) + perf_counter() - begun
            self.save()
        return units[key]

    def units(self, stage: str) -> dict[str, Any]:
        return self.content["units"].get(stage, {})

    def table(self, stage: str, rows: Any) -> None:
        self.content["tables"][stage] = rows
        self.save()

    def save(self) -> None:
        if self.file is None:
            return
        beside = self.file.with_name(f".{self.file.name}.{os.getpid()}.partial")
        beside.write_text(json.dumps(self.content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(beside, self.file)
