"""From the append-only streams of a hidden folder to the four Parquet tables of a finished run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bastion.records.decode import steps_from_tables
from bastion.records.run_json import read_run_json, write_run_json
from bastion.records.schema import RUN_JSON, TABLE_NAMES
from bastion.records.streams import read_streams, read_vocabulary
from bastion.records.totals import run_totals


def compact(hidden: Path, final: Path, *, finish_reason: str, complete: bool,
            text: str | None = None, info: Mapping[str, Any] | None = None) -> None:
    """Write the finished run `final` from the streams in `hidden`, then remove `hidden`.

    The new files are written to a third, hidden folder and that folder is renamed, so `final`
    is whole or absent. The streams are read back and checked first: what is renamed can be
    opened. `text` is the whole output; None joins the pieces of the steps.
    """
    tables = read_streams(hidden)
    steps, pieces = steps_from_tables(tables)
    joined = "".join(piece for texts in pieces for piece in texts)
    merged = {**read_run_json(hidden / RUN_JSON), **(info or {}),
              "finish_reason": finish_reason, "complete": complete, "totals": run_totals(steps),
              "text": joined if text is None else text,
              "vocabulary": read_vocabulary(hidden)}
    fresh = hidden.with_name(f"{hidden.name}.whole")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    write_tables(fresh, tables)
    write_run_json(fresh / RUN_JSON, merged)
    os.rename(fresh, final)
    shutil.rmtree(hidden, ignore_errors=True)


def write_tables(folder: Path, tables: Mapping[str, pa.Table]) -> None:
    for name in TABLE_NAMES:
        pq.write_table(tables[name], folder / f"{name}.parquet", compression="zstd")
