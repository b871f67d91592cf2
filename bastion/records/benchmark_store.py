"""Benchmarks on disk: `benchmarks/<id>/` with `bench.json`, `prompts.jsonl` and `results.jsonl`.

The folder is made whole and then given its name. From then on only `results.jsonl` grows, one synced
line per finished decode, and `bench.json` is replaced whole when a new session begins.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from bastion.errors import UserError
from bastion.home import benchmarks_dir
from bastion.records.benchmark_rows import BenchmarkRow, Cell, parse_rows
from bastion.records.ids import RUN_ID, checked_run_id, new_run_id
from bastion.records.live import is_held, try_hold
from bastion.records.run_json import plain, write_run_json

SCHEMA_VERSION = 1
INFO, PROMPTS, RESULTS = "bench.json", "prompts.jsonl", "results.jsonl"
MAX_INFO_BYTES = 16 * 2**20
TRIES = 20   # of taking the lock, 10 ms apart: whoever only asked has let go by then


@dataclass(frozen=True, slots=True)
class BenchmarkPrompt:
    """One conversation as it was when the benchmark began."""

    prompt_set: str
    id: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark as far as it is. `info` is bench.json: request, key, pair, device, sessions, ..."""

    info: dict[str, Any]
    prompts: tuple[BenchmarkPrompt, ...]
    rows: tuple[BenchmarkRow, ...]     # in the order they were measured, each cell once
    held: bool                         # some process is at work on it now

    @property
    def id(self) -> str:
        return self.info["id"]

    @property
    def sets(self) -> list[str]:
        """Names of the prompt sets, in the order they were asked for."""
        return list(dict.fromkeys(prompt.prompt_set for prompt in self.prompts))

    @property
    def methods(self) -> list[str]:
        return list(self.info["request"]["methods"])

    @property
    def temperatures(self) -> list[float]:
        return [float(value) for value in self.info["request"]["temperatures"]]

    def cells(self) -> Iterator[Cell]:
        """Everything to be measured: set by set, prompt by prompt."""
        for prompt in self.prompts:
            for temperature in self.temperatures:
                for turn in range(len(prompt.turns)):
                    for method in self.methods:
                        yield Cell(prompt.prompt_set, prompt.id, turn, temperature, method)

    @property
    def total(self) -> int:
        return sum(len(prompt.turns) for prompt in self.prompts) * len(self.temperatures) * len(self.methods)

    @property
    def done(self) -> int:
        return len(self.rows)

    @property
    def finished(self) -> bool:
        return self.done >= self.total


@dataclass(frozen=True, slots=True)
class BenchmarkSummary:
    """What a list of benchmarks shows."""

    id: str
    created: str
    sets: tuple[str, ...]
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    pair: str
    device: str
    key: str
    done: int
    total: int
    held: bool

    @property
    def finished(self) -> bool:
        return self.done >= self.total


class BenchmarkWriter:
    """Appends rows while it holds the benchmark's lock. Use as a context; made by `BenchmarkStore.writer`."""

    def __init__(self, folder: Path, lock: BinaryIO, size: int) -> None:
        self._folder, self._lock = folder, lock
        self._file = open(folder / RESULTS, "ab", buffering=0)
        self._file.truncate(size)   # a torn line of a killed process

    def append(self, row: BenchmarkRow) -> None:
        """Write one row; on return it survives the death of the process and of the machine."""
        try:
            self._file.write(row.line())
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(f"The benchmark cannot be saved in {self._folder.parent} ({error.strerror}); "
                            "free some space and resume it.") from None

    def note(self, info: Mapping[str, Any]) -> None:
        """Replace bench.json."""
        write_run_json(self._folder / INFO, dict(info))

    def __enter__(self) -> BenchmarkWriter:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()
        self._lock.close()


class BenchmarkStore:
    """All benchmarks under one folder (`bastion.home.benchmarks_dir()` unless given)."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root) if root is not None else benchmarks_dir()

    def create(self, info: Mapping[str, Any], prompts: Sequence[BenchmarkPrompt], bench_id: str | None = None) -> str:
        """Begin a benchmark; `info` holds at least `request` and `key`. Nothing half-made is ever seen under its id."""
        bench_id = checked_run_id(bench_id) if bench_id is not None else new_run_id()
        full = {**info, "schema_version": SCHEMA_VERSION, "id": bench_id, "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "sets": list(dict.fromkeys(prompt.prompt_set for prompt in prompts)),
                "turns": sum(len(prompt.turns) for prompt in prompts)}
        scratch = self.root / f".{bench_id}-{secrets.token_hex(4)}.tmp"
        try:
            scratch.mkdir(parents=True)
            write_run_json(scratch / INFO, plain(full))
            lines = [json.dumps({"prompt_set": p.prompt_set, "id": p.id, "turns": list(p.turns)}) + "\n" for p in prompts]
            (scratch / PROMPTS).write_text("".join(lines), encoding="ascii")
            (scratch / RESULTS).touch()
            if (self.root / bench_id).exists():
                raise UserError(f"A benchmark {bench_id} exists already; choose another id or delete it first.")
            os.rename(scratch, self.root / bench_id)
        except OSError as error:
            raise UserError(f"The benchmark cannot be saved under {self.root} ({error.strerror or error}); "
                            "free some space or set BASTION_HOME to a folder you can write.") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return bench_id

    def open(self, bench_id: str) -> Benchmark:
        """Read one benchmark, finished or not. Raises UserError when there is none or it is damaged."""
        folder = self._folder(bench_id)
        info = _read_info(folder / INFO)
        if info["id"] != bench_id:
            raise UserError(f"The folder of benchmark {bench_id} holds another one ({info['id'][:80]!r}); give it its own name back.")
        rows, _ = read_results(folder / RESULTS)
        return Benchmark(info, _prompts(folder / PROMPTS, _changed(folder / PROMPTS)), tuple(_once(rows)), at_work(folder))

    def list(self) -> list[BenchmarkSummary]:
        """Summaries of all readable benchmarks, newest first."""
        summaries = []
        try:
            names = [entry.name for entry in os.scandir(self.root) if RUN_ID.fullmatch(entry.name)]
        except FileNotFoundError:
            return []
        for name in names:
            try:
                summaries.append(_summary(self.root / name, name))
            except (UserError, OSError):
                continue
        return sorted(summaries, key=lambda one: (one.created, one.id), reverse=True)

    def find(self, key: str) -> BenchmarkSummary | None:
        """The newest benchmark of this request, an unfinished one before any finished one."""
        same = [summary for summary in self.list() if summary.key == key]
        return min(same, key=lambda summary: summary.finished, default=None)

    def writer(self, bench_id: str) -> BenchmarkWriter:
        """The right to add to a benchmark, for one process at a time. Raises UserError while another has it."""
        folder = self._folder(bench_id)
        lock = _hold(folder)
        if lock is None:
            raise UserError(f"Benchmark {bench_id} is at work in another process: wait for it, or stop it there first.")
        try:
            _, size = read_results(folder / RESULTS)
            return BenchmarkWriter(folder, lock, size)
        except BaseException:
            lock.close()
            raise

    def delete(self, bench_id: str) -> None:
        """Remove a benchmark; its kept runs stay. UserError while it is at work."""
        folder = self._folder(bench_id)
        if at_work(folder):
            raise UserError(f"Benchmark {bench_id} is at work; stop it before deleting it.")
        shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, bench_id: str) -> Path:
        folder = self.root / checked_run_id(bench_id)
        if not (folder / INFO).is_file():
            raise UserError(f"There is no benchmark {bench_id}; `python -m bastion bench --list` shows those there are.")
        return folder


_known: dict[str, tuple[int, int, list[BenchmarkRow]]] = {}
_reading = threading.Lock()


def read_results(path: Path) -> tuple[list[BenchmarkRow], int]:
    """Every whole row of a results file, and the bytes they take. Pages ask for a growing file again and
    again, so what was read before is not parsed twice."""
    with _reading:
        try:
            with open(path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                known_inode, size, rows = _known.get(str(path), (inode, 0, []))
                if known_inode != inode or os.fstat(file.fileno()).st_size < size:
                    size, rows = 0, []
                file.seek(size)
                more, good = parse_rows(file.read(), str(path), len(rows) + 1)
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}).") from None
        rows = rows + more if more else rows
        _known[str(path)] = inode, size + good, rows
        return rows, size + good


def at_work(folder: Path) -> bool:
    """Whether some process writes to the benchmark. Asking takes the lock for a moment, so that two who
    ask at once could each take the other for a writer: it is asked again before that is believed."""
    return all(is_held(folder) or time.sleep(0.002) for _ in range(3))


def _hold(folder: Path) -> BinaryIO | None:
    for _ in range(TRIES):
        if (lock := try_hold(folder)) is not None:
            return lock
        time.sleep(0.01)
    return None


def _once(rows: Iterable[BenchmarkRow]) -> Iterator[BenchmarkRow]:
    seen: set[Cell] = set()
    for row in rows:
        if row.cell not in seen:
            seen.add(row.cell)
            yield row


def _read_info(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_INFO_BYTES:
            raise ValueError
        info = json.loads(path.read_bytes())
        version = info["schema_version"]
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise UserError(f"{path} was written by a newer version (schema {version}, this one reads up to {SCHEMA_VERSION}); "
                            "update BASTION Studio to open it.")
        request = info["request"]
        texts = [info["id"], info["created"], info["key"], *request["methods"], *info["sets"]]
        if version != SCHEMA_VERSION or not all(isinstance(text, str) for text in texts) or not isinstance(info["turns"], int):
            raise ValueError
        [float(value) for value in request["temperatures"]]
        datetime.fromisoformat(info["created"])
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path} is missing or damaged; the benchmark cannot be opened.") from None
    return info


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=8)
def _prompts(path: Path, _changed: int) -> tuple[BenchmarkPrompt, ...]:
    try:
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
        prompts = tuple(BenchmarkPrompt(line["prompt_set"], line["id"], tuple(line["turns"])) for line in lines)
        if not all(isinstance(text, str) for p in prompts for text in (p.prompt_set, p.id, *p.turns)):
            raise TypeError
        return prompts
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path} is missing or damaged; the benchmark cannot be opened.") from None


@lru_cache(maxsize=512)
def _lines_of(path: Path, _size: int, _changed: int) -> int:
    return path.read_bytes().count(b"\n")


def _lines(path: Path) -> int:
    """Whole lines of a file, counted again only when it changed: pages list benchmarks at every rerun."""
    status = path.stat()
    return _lines_of(path, status.st_size, status.st_mtime_ns)


def _summary(folder: Path, bench_id: str) -> BenchmarkSummary:
    info = _read_info(folder / INFO)
    if info["id"] != bench_id:
        raise UserError("another benchmark's folder")
    request = info["request"]
    done = _lines(folder / RESULTS)
    return BenchmarkSummary(
        bench_id, info["created"], tuple(info["sets"]), tuple(request["methods"]), tuple(map(float, request["temperatures"])),
        str(info.get("pair", "")), str(info.get("device", "")), info["key"], done,
        info["turns"] * len(request["methods"]) * len(request["temperatures"]), at_work(folder))
