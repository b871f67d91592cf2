"""Prompt sets by name: ours, the published ones, or any JSON lines file by its path.

A published set is fetched once through Hugging Face `datasets`, turned into prompts and kept as
JSON lines under `prompts/` of the cache folder, so that it needs no network afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bastion.home import home
from bastion.jobs.prompt_files import Conversation, PromptSet, read_prompt_set
from bastion.jobs.prompt_sources import ALIASES, GROUPS, HUB, HubSource

OURS = "ours"
OURS_FILE = Path(__file__).resolve().parents[2] / "assets" / "prompts" / "ours.jsonl"
PUBLISHED_SEED = 0
"""The published program shuffles with this seed before it takes the first so many prompts."""

INSTEAD = ("use the set `ours`, a local JSON lines file by its path, or a set that was fetched before "
           "(`python -m bastion bench --list` says which)")

Load = Callable[..., Iterable[Any]]


def cached_file(name: str) -> Path:
    """Where a published set is kept as prompts once it was fetched."""
    return home() / "prompts" / f"{name}.jsonl"


def expand_sets(names: Iterable[str]) -> list[str]:
    """Canonical set names in the order given, groups spelled out, doubles dropped.

    A name with a path separator or that ends in .jsonl is a file and becomes its absolute path.
    Raises UserError that names what is not known.
    """
    found: list[str] = []
    for name in (name.strip() for name in names):
        if name in GROUPS:
            found += GROUPS[name]
        elif name == OURS or name in HUB:
            found.append(name)
        elif name in ALIASES:
            found.append(ALIASES[name])
        elif is_file_name(name):
            path = Path(name).expanduser().absolute()
            if not path.is_file():
                raise UserError(f"There is no file {name}: check the path, or name one of {_known()}.")
            found.append(str(path))
        elif name:
            raise UserError(f"There is no prompt set {name[:80]!r}: choose from {_known()}, or give the path of a .jsonl file.")
    found = list(dict.fromkeys(found))
    if not found:
        raise UserError(f"Name at least one prompt set: {_known()}, or the path of a .jsonl file.")
    shown = [shown_name(name) for name in found]
    for name in shown:
        if name == "mean":
            raise UserError("A prompt set cannot be called mean, which names the mean over sets in every table: rename the file.")
        if shown.count(name) > 1:
            raise UserError(f"Two of the prompt sets are called {name}: rename one of the files, since results are told apart by this name.")
    return found


def is_file_name(name: str) -> bool:
    return name.endswith((".jsonl", ".json")) or "/" in name or os.sep in name


def shown_name(name: str) -> str:
    """The name a set has in results: a file's name without its ending."""
    return Path(name).stem if is_file_name(name) else name


def fingerprint(name: str) -> str:
    """What tells whether a set of this (canonical) name is still the same, without a network."""
    file = OURS_FILE if name == OURS else Path(name) if is_file_name(name) else None
    if file is None:
        source = HUB[name]
        return f"{source.hub}:{source.config or ''}:{source.split}:{source.revision or ''}"
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): check the path.") from None


def load_prompt_set(name: str, limit: int | None = None, say: Callable[[str], None] | None = None, load: Load | None = None) -> PromptSet:
    """The prompts of one set by its canonical name.

    `limit` keeps the first so many of ours and of files, and, as published, the first so many of
    the others after a shuffle with seed 0. `load` stands in for `datasets.load_dataset`.
    Raises UserError when the set can be had neither from the hub nor from an earlier download.
    """
    if name == OURS or is_file_name(name):
        return PromptSet(shown_name(name), read_prompt_set(OURS_FILE if name == OURS else Path(name), limit).conversations)
    source = HUB[name]
    if not cached_file(name).is_file():
        if say is not None:
            say(f"Fetching the prompt set {source.title}")
        _fetch(source, load or _datasets())
    prompts = read_prompt_set(cached_file(name)).conversations
    return PromptSet(name, published_sample(prompts, limit))


def published_sample(prompts: tuple[Conversation, ...], limit: int | None) -> tuple[Conversation, ...]:
    """The first `limit` prompts after the published shuffle; all in their order when there are no more than that."""
    if limit is None or len(prompts) <= limit:
        return prompts
    shuffled = list(prompts)
    random.Random(PUBLISHED_SEED).shuffle(shuffled)
    return tuple(shuffled[:limit])


def format_rows(source: HubSource, rows: Iterable[Any]) -> list[dict[str, Any]]:
    """{"id", "turns"} of every row, ids by the row's place in the set. Raises UserError when a field is missing."""
    prompts = []
    for place, row in enumerate(rows):
        try:
            turns = source.format(row)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"The prompt set {source.hub} does not hold the fields it is known by (row {place}: {error}); {INSTEAD}.") from None
        if all(turn.strip() for turn in turns) and turns:
            prompts.append({"id": f"{source.name}-{place}", "turns": turns})
    if not prompts:
        raise UserError(f"The prompt set {source.hub} came without a single prompt; {INSTEAD}.")
    return prompts


def _datasets() -> Load:
    try:
        import datasets
    except ImportError:
        raise UserError("Published prompt sets come through the package `datasets`, which is not installed: run "
                        f"`pip install -r requirements.txt`, or {INSTEAD}.") from None
    datasets.disable_progress_bars()
    return datasets.load_dataset


def _fetch(source: HubSource, load: Load) -> None:
    positional, named = source.load_arguments()
    try:
        prompts = format_rows(source, load(*positional, **named))
    except UserError:
        raise
    except Exception as error:  # the hub's clients raise their own kinds: network, access, missing files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise UserError(f"The prompt set {source.hub} could not be fetched ({reason}); {INSTEAD}.") from error
    file = cached_file(source.name)
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text("".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts), encoding="utf-8")
        os.replace(beside, file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UserError(f"The prompts of {source.hub} cannot be kept in {file.parent} ({error.strerror}); "
                        "free some space or set BASTION_HOME to a folder you can write.") from None


def _known() -> str:
    return ", ".join((OURS, *HUB, *GROUPS))
