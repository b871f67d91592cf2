"""How a bench ends: its results in a file, or one sentence that says what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bastion.errors import UserError


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """A UserError within ends the program: its sentence on standard error, status 2."""
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def write_results(file: Path | None, results: dict[str, Any]) -> None:
    """As JSON, when a file was asked for."""
    if file is not None:
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
