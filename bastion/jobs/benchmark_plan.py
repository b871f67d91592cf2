"""What a benchmark will come to before it begins: how many decodes, and what keeping them takes on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from bastion.jobs.benchmark_request import BenchmarkRequest
from bastion.jobs.compare import YARDSTICK
from bastion.jobs.prompt_sets import OURS, OURS_FILE, cached_file, expand_sets, is_file_name, load_prompt_set


@dataclass(frozen=True, slots=True)
class Plan:
    """`turns` over all sets, None where a set must be fetched first; `to_fetch` are those."""

    turns: int | None
    decodes: int | None
    to_fetch: tuple[str, ...]

    def kept_bytes(self, max_new_tokens: int, bytes_per_token: float | None) -> float | None:
        """At most so many bytes for the runs; None while either is unknown."""
        return None if self.decodes is None or bytes_per_token is None else self.decodes * max_new_tokens * bytes_per_token


def plan(request: BenchmarkRequest) -> Plan:
    """The size of a request. Raises UserError for sets that cannot be read."""
    names = expand_sets(request.sets)
    to_fetch = tuple(name for name in names if not _file(name).is_file())
    if to_fetch:
        return Plan(None, None, to_fetch)
    turns = sum(_turns(name, request.limit, _file(name).stat().st_mtime_ns) for name in names)
    methods = len({*request.methods, YARDSTICK})
    return Plan(turns, turns * methods * len(request.temperatures), ())


def _file(name: str) -> Path:
    return OURS_FILE if name == OURS else Path(name) if is_file_name(name) else cached_file(name)


@lru_cache(maxsize=64)
def _turns(name: str, limit: int | None, _changed: int) -> int:
    return sum(len(one.turns) for one in load_prompt_set(name, limit).conversations)


__all__ = ["Plan", "plan"]
