"""Prompts to train on: read, kept away from what is measured, and multiplied by the target itself.

A small target's own answers are the training data, so more prompts mean more data. When the
files run out the target writes user turns itself: it gets a few opening words and samples on.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bastion.errors import UserError

SHINGLE = 8  # words in a row that two texts must share to count as near each other


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user turn."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Opener:
    """The first words of a user turn that the target is to write, and a closing line put behind it."""

    source: str
    text: str
    closing: str = ""
    until: str = ""  # the turn also ends where this text appears; it is kept


def read_lines(path: Path) -> Iterator[dict]:
    """The objects of a JSON-lines file, gzip or plain; UserError with the line number on a bad one."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError:
                    raise UserError(f"{path}, line {number}: not JSON; give one object per line.") from None
                if not isinstance(row, dict):
                    raise UserError(f"{path}, line {number}: not an object; give one object per line.")
                yield row
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give a JSON-lines file.") from None


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSON-lines file with `prompt` or `turns` (the first turn is taken)."""
    prompts = []
    for number, row in enumerate(read_lines(path), 1):
        text = row.get("prompt") or (row.get("turns") or [None])[0]
        if not isinstance(text, str) or not text.strip():
            raise UserError(f'{path}, object {number}: has neither "prompt" nor "turns"; add one of them.')
        prompts.append(Prompt(str(row.get("id", f"{path.stem}-{number}")), text))
    return prompts


def read_openers(path: Path) -> list[Opener]:
    """Openers of a JSON-lines file with `source`, `opener` and optionally `closing` and `until`."""
    return [
        Opener(str(row.get("source", "openers")), row["opener"], row.get("closing", ""), row.get("until", ""))
        for row in read_lines(path)
        if isinstance(row.get("opener"), str)
    ]


def shingles(text: str) -> set[tuple[str, ...]]:
    """Every run of `SHINGLE` words, lower case; the whole text when it is shorter."""
    words = text.lower().split()
    last = max(1, len(words) - SHINGLE + 1)
    return {tuple(words[i : i + SHINGLE]) for i in range(last)}


class NearDuplicates:
    """Tells whether a text shares a run of words with any text that must not be trained on.

    Lines that more than `common` of the forbidden texts share (a benchmark's closing line) say
    nothing about a prompt, and are left out on both sides.
    """

    def __init__(self, forbidden: Iterable[str], common: int = 3):
        texts = list(forbidden)
        counts = Counter(line for text in texts for line in set(text.splitlines()))
        self.frame = {line for line, count in counts.items() if count > common}
        self.runs = {run for text in texts for run in shingles(self.own(text))} - {()}

    def own(self, text: str) -> str:
        """The text without the lines that many share."""
        return "\n".join(line for line in text.splitlines() if line not in self.frame)

    def __contains__(self, text: str) -> bool:
        return not self.runs.isdisjoint(shingles(self.own(text)))


def openers_from(prompts: list[Prompt], rng: random.Random, words: tuple[int, int] = (2, 6)) -> Iterator[Opener]:
    """Endless openers: the first few words of a random prompt, and its last line when many share it."""
    endings: dict[str, int] = {}
    for prompt in prompts:
        if "\n" in prompt.text:
            ending = "\n" + prompt.text.rsplit("\n", 1)[1]
            endings[ending] = endings.get(ending, 0) + 1
    shared = {ending for ending, count in endings.items() if count >= max(5, len(prompts) // 50)}
    while True:
        text = rng.choice(prompts).text
        closing = next((ending for ending in shared if text.endswith(ending)), "")
        body = text[: len(text) - len(closing)] if closing else text
        yield Opener("self", " ".join(body.split()[: rng.randint(*words)]), closing)
