"""Races on disk: what was asked for and in which order it is decoded. The decodes themselves are runs.

`races/<id>.json` holds the request and the order; the run of every decode has an id that follows
from them, so that a race can be opened again, resumed where it was cut short, and read without torch.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bastion.home import races_dir
from bastion.records.ids import RUN_ID, checked_run_id
from bastion.records.run import Run
from bastion.records.store import RunStore

VERSION = 1
LARGEST_FILE = 4 * 2**20          # bytes; the longest prompt that is taken fits
WHOLE = ("stop", "length", "context")
"""Ends of a decode that ran its course; what was stopped, failed or killed is decoded again."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One decode of a race."""

    race: str
    repeat: int    # from 1
    order: int     # place within the repeat, from 1
    method: str

    @property
    def run_id(self) -> str:
        return f"{self.race}-r{self.repeat}-{self.order}"

    @property
    def group(self) -> dict[str, Any]:
        """What its run's `run.json` says of the race."""
        return {"kind": "race", "id": self.race, "repeat": self.repeat, "order": self.order}


@dataclass(frozen=True, slots=True)
class Race:
    """The request of a race and the order in which it is decoded, repeat by repeat."""

    id: str
    prompt: str
    methods: tuple[str, ...]                 # in the order they were asked for, the yardstick included
    order: tuple[tuple[str, ...], ...]       # order[r]: every method once, as decoded in repeat r + 1
    order_seed: int
    yardstick_added: bool = False            # `ar` was not asked for and runs as the yardstick
    sampling: Mapping[str, Any] = field(default_factory=dict)  # temperature, top_p, top_k, max_new_tokens, seed
    pair: Mapping[str, Any] = field(default_factory=dict)      # preset, target, drafter, device, dtype
    created: str = ""                        # ISO 8601, UTC

    @property
    def repeats(self) -> int:
        return len(self.order)

    def slots(self) -> list[Slot]:
        """All decodes in the order they are made."""
        return [Slot(self.id, r, k, method)
                for r, methods in enumerate(self.order, 1) for k, method in enumerate(methods, 1)]


def shuffled_order(methods: Sequence[str], repeats: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Every method once a repeat, each repeat shuffled anew, the same for the same seed."""
    draw = random.Random(seed)
    return tuple(tuple(draw.sample(list(methods), len(methods))) for _ in range(repeats))


def is_whole(run: Run) -> bool:
    """Whether this decode of a race counts and is not made again."""
    return run.complete and run.info.get("finish_reason") in WHOLE


class RaceStore:
    """All races under one folder (`bastion.home.races_dir()` unless given)."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root) if root is not None else races_dir()

    def save(self, race: Race) -> None:
        """Write the race; the file is whole or not there. Raises UserError when the folder cannot be written."""
        text = json.dumps({"version": VERSION, **asdict(race)}, indent=1, allow_nan=False)
        beside = self.root / f".{race.id}.{os.getpid()}.tmp"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            beside.write_text(text, encoding="ascii")
            os.replace(beside, self._path(race.id))
        except OSError as error:
            raise UserError(f"The race cannot be saved under {self.root} ({error.strerror or error}); "
                            "free some space or set BASTION_HOME to a folder you can write.") from None

    def open(self, race_id: str) -> Race:
        """Read and check one race; UserError when there is none or it is damaged."""
        path = self._path(checked_run_id(race_id))
        try:
            if path.stat().st_size > LARGEST_FILE:
                raise UserError(f"{path} is larger than a race may be; it was not read.")
            values = json.loads(path.read_bytes().decode("utf-8"))
        except FileNotFoundError:
            raise UserError(f"There is no race {race_id}; choose one from the list of races.") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror or error}).") from None
        except (ValueError, RecursionError):
            raise UserError(f"{path} is not valid JSON; the race is damaged and cannot be opened.") from None
        return _checked(values, race_id, path)

    def list(self) -> list[Race]:
        """All readable races, newest first."""
        try:
            names = [entry.name for entry in os.scandir(self.root) if entry.name.endswith(".json")]
        except FileNotFoundError:
            return []
        races = []
        for name in names:
            if RUN_ID.fullmatch(name.removesuffix(".json")):
                try:
                    races.append(self.open(name.removesuffix(".json")))
                except UserError:
                    continue
        return sorted(races, key=lambda race: (race.created, race.id), reverse=True)

    def _path(self, race_id: str) -> Path:
        return self.root / f"{race_id}.json"


def new_race(race_id: str, prompt: str, methods: Sequence[str], repeats: int, order_seed: int, *, yardstick_added: bool,
             sampling: Mapping[str, Any], pair: Mapping[str, Any]) -> Race:
    """A race that begins now, its order drawn from `order_seed`."""
    return Race(checked_run_id(race_id), prompt, tuple(methods), shuffled_order(methods, repeats, order_seed), order_seed,
                yardstick_added, dict(sampling), dict(pair), datetime.now(UTC).isoformat(timespec="seconds"))


def finished_slots(race: Race, store: RunStore) -> int:
    """Decodes that are done, counted by the run files that are there: quick enough for a list."""
    return sum((store.root / slot.run_id).is_dir() for slot in race.slots())


def _checked(values: Any, race_id: str, path: Path) -> Race:
    def must(condition: bool, what: str) -> None:
        if not condition:
            raise UserError(f"{path} is damaged ({what}); the race cannot be opened.")

    must(isinstance(values, dict) and isinstance(values.get("version"), int), "no version")
    if values["version"] > VERSION:
        raise UserError(f"{path} was written by a newer version; update BASTION Studio to open it.")
    must(values.get("id") == race_id, "another id")
    for name, kind in (("prompt", str), ("created", str), ("methods", list), ("order", list), ("order_seed", int),
                       ("yardstick_added", bool), ("sampling", dict), ("pair", dict)):
        must(isinstance(values.get(name), kind), name)
    methods = values["methods"]
    must(0 < len(methods) < 100 and all(isinstance(m, str) for m in methods) and len(set(methods)) == len(methods), "methods")
    must(0 < len(values["order"]) < 1000 and all(isinstance(row, list) and all(isinstance(m, str) for m in row)
         and sorted(row) == sorted(methods) for row in values["order"]), "order")
    return Race(race_id, values["prompt"], tuple(methods), tuple(tuple(row) for row in values["order"]), values["order_seed"],
                values["yardstick_added"], values["sampling"], values["pair"], values["created"])
