"""The tables of a run that is still being written: append-only Arrow streams in a hidden folder.

One stream per table, one batch per step. The row of `steps` is written last, so that a step
whose row is there is there in full; whatever follows the last such row (the process was killed
between two writes, or inside one) is left out when reading.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from bastion.records.encode import step_batches
from bastion.records.schema import TABLES
from bastion.step import StepRecord

VOCABULARY = "vocabulary.jsonl"


class StreamWriter:
    """Appends steps to the streams in `folder`. Not for use from two threads at once."""

    def __init__(self, folder: Path) -> None:
        self._files = {name: pa.OSFile(str(stream_path(folder, name)), "wb") for name in TABLES}
        self._streams = {name: pa.ipc.new_stream(self._files[name], schema)
                         for name, schema in TABLES.items()}
        pa.array([0])  # imports pandas, half a second: before the decode starts, not in its first step
        self._vocabulary = open(folder / VOCABULARY, "ab", buffering=0)

    def append(self, step: StepRecord, pieces: list[str], new_texts: dict[int, str]) -> None:
        """Write one step; on return it survives the death of this process."""
        if new_texts:
            line = json.dumps({str(token): text for token, text in new_texts.items()})
            self._vocabulary.write(line.encode("ascii") + b"\n")
        for name, batch in step_batches(step, pieces).items():
            self._streams[name].write_batch(batch)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        for file in (*self._files.values(), self._vocabulary):
            file.close()


def stream_path(folder: Path, table: str) -> Path:
    return folder / f"{table}.arrows"


def read_streams(folder: Path) -> dict[str, pa.Table]:
    """The four tables as far as whole steps go."""
    tables = {name: _read_stream(stream_path(folder, name), schema)
              for name, schema in TABLES.items()}
    finished = tables["steps"].num_rows
    for name in ("nodes", "growth", "marginals"):
        steps = tables[name].column("step").to_numpy()
        tables[name] = tables[name].slice(0, int((steps < finished).sum()))
    return tables


def read_vocabulary(folder: Path) -> dict[str, str]:
    """{token id as text: text}; a line cut short by a kill is left out."""
    texts: dict[str, str] = {}
    try:
        lines = (folder / VOCABULARY).read_bytes().split(b"\n")
    except FileNotFoundError:
        return texts
    for line in lines[:-1]:  # what follows the last newline is not whole
        texts.update(json.loads(line))
    return texts


def _read_stream(path: Path, schema: pa.Schema) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    try:
        with pa.ipc.open_stream(pa.py_buffer(path.read_bytes())) as reader:
            while True:
                batches.append(reader.read_next_batch())
    except (StopIteration, FileNotFoundError, EOFError, pa.ArrowInvalid, OSError):
        pass  # the end, or a write that was cut short: what came before it is whole
    return pa.Table.from_batches(batches, None if batches else schema)   # an older version wrote fewer columns
