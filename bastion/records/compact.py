"""From the append-only streams of a hidden folder to the four Parquet tables of a finished run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bastion.records.decode import steps_from_tables
from bastion.records.run_json import REWRITING, read_run_json, write_run_json
from bastion.records.schema import RUN_JSON, TABLE_NAMES
from bastion.records.streams import read_streams, read_vocabulary
from bastion.records.totals import run_totals


def compact(hidden: Path, final: Path, *, finish_reason: str, text: str | None = None,
            info: Mapping[str, Any] | None = None) -> None:
    """Write the finished run `final` from the streams in `hidden`, then remove `hidden`.

    The new files are written to a third, hidden folder and that folder is renamed, so `final`
    is whole or absent.
    """
    fresh = whole_path(hidden)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    with REWRITING:
        write_files(hidden, fresh, finish_reason=finish_reason, complete=True, text=text, info=info)
        os.rename(fresh, final)
    shutil.rmtree(hidden, ignore_errors=True)


def whole_path(hidden: Path) -> Path:
    """The folder in which a finished run is put together, hidden too."""
    return hidden.with_name(f"{hidden.name}.whole")


def write_files(hidden: Path, folder: Path, *, finish_reason: str, complete: bool,
                text: str | None = None, info: Mapping[str, Any] | None = None) -> None:
    """Write the five files of a run into `folder` from the streams in `hidden`.

    The streams are read back and checked first: what is written can be opened. `text` is the
    whole output; None joins the pieces of the steps. `info` is added to `run.json`.
    """
    tables = read_streams(hidden)
    steps, pieces = steps_from_tables(tables)
    joined = "".join(piece for texts in pieces for piece in texts)
    merged = {**read_run_json(hidden / RUN_JSON), **(info or {}),
              "finish_reason": finish_reason, "complete": complete, "totals": run_totals(steps),
              "text": joined if text is None else text,
              "vocabulary": read_vocabulary(hidden)}
    for name in TABLE_NAMES:
        pq.write_table(tables[name], folder / f"{name}.parquet", compression="zstd",
                       write_page_checksum=True)
    write_run_json(folder / RUN_JSON, merged)
