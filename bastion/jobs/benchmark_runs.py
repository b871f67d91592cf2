"""Keeping a benchmark's decodes as runs, every tree traced, so that Surrogate and Explore can read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bastion.jobs.benchmark_decoder import Decoder, Messages
from bastion.jobs.work import sentence
from bastion.records import RunStore
from bastion.records.benchmark_rows import Cell
from bastion.step import StepRecord

TITLE_CHARACTERS = 80
LOOKED_AT = 20   # newest runs that tell what one token takes on disk


class RunKeeper:
    """Saves each decode of one benchmark. A run's id is the benchmark's and its place in it, so that a decode
    which a kill cut short is replaced when it is done again."""

    def __init__(self, store: RunStore, decoder: Decoder) -> None:
        self._store, self._decoder, self._info = store, decoder, {}

    def begin(self, info: Mapping[str, Any]) -> None:
        """Hear what every run says of itself: bench.json as this session begins, its calibration included."""
        self._info = info

    def keep(self, cell: Cell, place: int, prompt_ids: list[int], messages: Messages, seed: int,
             steps: Iterator[StepRecord]) -> tuple[str, Iterator[StepRecord]]:
        """(run id, the same steps, saved as they pass)."""
        run_id = f"{self._info['id'][:56]}-{place + 1:06d}"
        try:
            self._store.delete(run_id)
        except UserError:
            pass   # there is none, which is the rule
        decoder, request = self._decoder, self._info["request"]
        prompt = messages[-1]["content"]
        names = ("pair", "device", "dtype", "attention", "drafter_depth", "versions")
        info = {
            **{name: self._info.get(name) for name in names}, "title": " ".join(prompt.split())[:TITLE_CHARACTERS],
            "prompt": prompt if len(messages) == 1 else messages, "prompt_ids": prompt_ids, "method": cell.method,
            "sampling": {"temperature": cell.temperature, "top_p": 1.0, "top_k": 0, "max_new_tokens": request["max_new_tokens"],
                         "seed": seed, "stop_token_ids": list(decoder.stop_token_ids)},
            "calibration": self._info.get("calibration") or None, "prompt_set": cell.prompt_set, "prompt_id": cell.prompt,
            "group": {"kind": "benchmark", "id": self._info["id"], "turn": cell.turn},
        }
        return run_id, self._saved(run_id, info, steps)

    def _saved(self, run_id: str, info: dict[str, Any], steps: Iterator[StepRecord]) -> Iterator[StepRecord]:
        writer = self._store.create(info, run_id=run_id, text_of=self._decoder.texts, decode=self._decoder.text)
        ended: dict[str, str] = {"finish_reason": "cancelled"}   # unless it comes to its end or fails
        try:
            for step in steps:
                writer.append(step)
                yield step
            ended = {}
        except Exception as error:
            ended = {"finish_reason": "failed", "note": sentence(error)}
            raise
        finally:
            steps.close()
            if ended.get("finish_reason") == "cancelled":
                writer.abandon()   # it is decoded again when the benchmark goes on
            else:
                writer.finish(**ended)


def bytes_per_token(store: RunStore) -> float | None:
    """What saved runs take on disk for each token, by the newest few; None before the first one."""
    size = tokens = 0
    for run in store.list()[:LOOKED_AT]:
        if run.complete and run.tokens:
            size += folder_bytes(store.root / run.id)
            tokens += run.tokens
    return size / tokens if tokens else None


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a run's folder."""
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except OSError:
        return 0
