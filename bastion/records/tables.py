"""Reading the Parquet tables of a run that may come from anywhere."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bastion.errors import UserError
from bastion.records.schema import LATER_COLUMNS, TABLES

MAX_TABLE_BYTES = 2**30       # uncompressed, per table
MAX_TABLE_VALUES = 50_000_000  # per column, list items counted
_BATCH_ROWS = 16_384


def read_tables(folder: Path, called: str = "", advice: str = "restore it from a copy or delete the run"
                ) -> dict[str, pa.Table]:
    """The four tables of a finished run; UserError for one that is missing, cut short or too large.

    In messages the files are named by their path, or `called` followed by their name; `advice` is
    what to do about a damaged one.
    """
    return {name: _read_table(folder / f"{name}.parquet", name,
                              f"{called} {name}.parquet" if called else str(folder / f"{name}.parquet"), advice)
            for name in TABLES}


def _read_table(path: Path, name: str, shown: str, advice: str) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check_size(file, shown)
            here = [c for c in TABLES[name].names if c in file.schema_arrow.names]
            missing = [c for c in TABLES[name].names if c not in here and c not in LATER_COLUMNS]
            if missing:
                raise UserError(f"{shown} lacks the column {missing[0]!r}; the run is damaged or "
                                "was not written by BASTION Studio.")
            batches, size = [], 0
            for batch in file.iter_batches(_BATCH_ROWS, columns=here):
                batch.validate(full=True)
                size += batch.nbytes
                if size > MAX_TABLE_BYTES:
                    raise UserError(f"{shown} is too large to be a run's table; it was not opened.")
                batches.append(batch)
            return pa.Table.from_batches(batches, file.schema_arrow if not batches else None) \
                .select(here)
    except FileNotFoundError:
        raise UserError(f"{shown} is missing; the run is damaged.") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{shown} is damaged or cut short; {advice}.") from error


def _check_size(file: pq.ParquetFile, shown: str) -> None:
    metadata = file.metadata
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    values = max((metadata.row_group(i).column(j).num_values
                  for i in range(metadata.num_row_groups)
                  for j in range(metadata.num_columns)), default=0)
    if max(values, metadata.num_rows) > MAX_TABLE_VALUES or size > MAX_TABLE_BYTES:
        raise UserError(f"{shown} is too large to be a run's table; it was not opened.")
