"""How commands write: one JSON object, aligned tables, and progress on standard error."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bastion.errors import UserError


def check_json_file(destination: str | None) -> None:
    """Raise UserError before any work is done when `--json` names a file that cannot be written."""
    if destination is None or destination == "-":
        return
    if not destination.strip():
        raise UserError("--json names no file: give one, or - for standard output.")
    file = Path(destination)
    if file.is_dir():
        raise UserError(f"--json {destination} is a folder: name a file in it.")
    if not file.absolute().parent.is_dir():
        raise UserError(f"--json {destination}: there is no folder {file.absolute().parent}.")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise UserError(f"--json {destination} cannot be written: check its permissions.")


def write_json(value: dict[str, Any], destination: str | None) -> None:
    """One strict JSON object (no NaN) to a file, whole or not at all, or to standard output for "-"."""
    if destination is None:
        return
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if destination == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
        sys.stdout.buffer.flush()
        return
    file = Path(destination)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text + "\n", encoding="utf-8")
        os.replace(partial, file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"--json {destination} cannot be written ({error.strerror}).") from error


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others (numbers) to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                       for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in (header, *rows)]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


class ProgressLine:
    """Words and a percentage on standard error: one line redrawn on a terminal, few lines elsewhere."""

    SECONDS_BETWEEN_LINES = 10.0

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self._words = ""
        self._written = float("-inf")
        self._width = 0

    def __call__(self, words: str, share: float | None = None) -> None:
        now = time.monotonic()
        stem = words.split(",")[0]  # "Downloading, 34 of 93 MB" and "Downloading, 35 of 93 MB" are one thing
        if stem == self._words and now - self._written < (0.1 if self.terminal else self.SECONDS_BETWEEN_LINES):
            return
        self._words, self._written = stem, now
        line = words if share is None else f"{words} ({100 * share:.0f} %)"
        if self.terminal:
            sys.stderr.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def briefly(self, words: str) -> None:
        """Say what takes a few seconds: on a terminal only, where the line goes away again."""
        if self.terminal:
            self(words)

    def clear(self) -> None:
        """Take the line away, so that what follows starts on a clean one."""
        if self.terminal and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
        self._words, self._width = "", 0
