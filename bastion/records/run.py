"""A run read from disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bastion.records.totals import output_ids
from bastion.step import StepRecord


@dataclass(frozen=True, slots=True)
class Run:
    """One decode, whole or as far as a killed process came.

    `info` is `run.json` (see `bastion.records.schema`), `steps` are the records in order, and
    `pieces[s][t]` is the text that token t of step s added to the output (see `TextIncrements`).
    """

    info: dict[str, Any]
    steps: list[StepRecord]
    pieces: list[list[str]]

    @property
    def id(self) -> str:
        return self.info["id"]

    @property
    def complete(self) -> bool:
        """The decode came to an end of its own (or was stopped) and was saved whole."""
        return self.info["complete"]

    @property
    def vocabulary(self) -> dict[str, str]:
        """{token id as text: its text} for every id that occurs in the run."""
        return self.info["vocabulary"]

    @property
    def prompt_ids(self) -> list[int]:
        return self.info["prompt_ids"]

    @property
    def output_ids(self) -> list[int]:
        return output_ids(self.steps)

    @property
    def text(self) -> str:
        """The whole output; of a run that was cut short, as far as its characters were complete."""
        return self.info["text"]

    def text_of(self, token_id: int) -> str:
        """The text of one token by itself; `<token 17>` for an id that never occurred here."""
        return self.vocabulary.get(str(int(token_id)), f"<token {int(token_id)}>")

    def texts_of(self, token_ids: Sequence[int]) -> list[str]:
        return [self.text_of(token_id) for token_id in token_ids]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a list of runs shows; read from `run.json` alone."""

    id: str
    created: str              # ISO 8601, UTC
    title: str
    pair: str
    method: str
    device: str
    dtype: str
    complete: bool
    finish_reason: str | None
    tokens: int | None
    tau: float | None
    tokens_per_second: float | None
    note: str = ""
    temperature: float | None = None
    acceptance: str = ""      # name of the acceptance rule; empty where the run does not say
    prompt_set: str = ""
    group: str = ""           # "race" or "benchmark" for a run that belongs to one
    group_id: str = ""
    bytes: int = 0            # what its files take on disk
