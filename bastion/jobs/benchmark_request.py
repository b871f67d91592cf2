"""What a benchmark is asked for, and the key by which the same request finds it again."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bastion.errors import UserError
from bastion.jobs.compare import YARDSTICK
from bastion.jobs.offers import registry_name
from bastion.jobs.prompt_sets import expand_sets, fingerprint
from bastion.jobs.request import MAX_SEED, PairChoice

MOST_METHODS, MOST_TEMPERATURES, MOST_TOKENS = 24, 8, 32_768


@dataclass(frozen=True, slots=True)
class BenchmarkRequest:
    """Prompt sets times methods times temperatures. `limit`: prompts of each set; None takes all."""

    sets: tuple[str, ...] = ("ours",)
    methods: tuple[str, ...] = ("ar", "dflash", "ddtree:16", "bastion")
    temperatures: tuple[float, ...] = (0.0,)
    limit: int | None = None
    max_new_tokens: int = 256
    seed: int = 0
    pair: PairChoice = PairChoice()
    keep_runs: bool = False

    def check(self, known: Callable[[str], str] | None = None) -> BenchmarkRequest:
        """The request with canonical names, each once, and plain decoding among the methods.

        `known` turns a method into its registry name (`registry_name` unless given). Raises UserError
        that names what cannot be used.
        """
        if not self.methods:
            raise UserError("Name at least one method, like ar,dflash,bastion.")
        known = known or registry_name
        methods = tuple(dict.fromkeys(known(method) for method in self.methods))
        methods = methods if YARDSTICK in methods else (YARDSTICK, *methods)
        if len(methods) > MOST_METHODS:
            raise UserError(f"A benchmark takes {MOST_METHODS} methods at most, plain decoding included; leave some out.")
        temperatures = tuple(dict.fromkeys(float(value) for value in self.temperatures))
        if not temperatures or not all(math.isfinite(value) and value >= 0 for value in temperatures):
            raise UserError("Give temperatures as numbers from 0 up, separated by commas, like 0,1.")
        if len(temperatures) > MOST_TEMPERATURES:
            raise UserError(f"A benchmark takes {MOST_TEMPERATURES} temperatures at most; leave some out.")
        if self.limit is not None and self.limit < 1:
            raise UserError("Take at least 1 prompt of each set, or leave the limit out for all.")
        if not 1 <= self.max_new_tokens <= MOST_TOKENS:
            raise UserError(f"Ask for 1 to {MOST_TOKENS} new tokens.")
        if not 0 <= self.seed <= MAX_SEED:
            raise UserError(f"The seed must be a whole number from 0 to {MAX_SEED}.")
        return replace(self, sets=tuple(expand_sets(self.sets)), methods=methods, temperatures=temperatures)

    @property
    def key(self) -> str:
        """The same for the same request with the same prompts; needs no network. Of a checked request."""
        content = {**self.to_json(), "prompts": [fingerprint(name) for name in self.sets]}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:24]

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BenchmarkRequest:
        """What `to_json` gave; UserError for values that no request can have had."""
        try:
            pair = PairChoice(**values["pair"])
            limit = values["limit"]
            return cls(tuple(map(str, values["sets"])), tuple(map(str, values["methods"])), tuple(map(float, values["temperatures"])),
                       None if limit is None else int(limit), int(values["max_new_tokens"]), int(values["seed"]), pair,
                       bool(values["keep_runs"]))
        except (KeyError, TypeError, ValueError):
            raise UserError("The request of this benchmark is damaged: start a new one.") from None


def prompt_seed(seed: int, prompt_set: str, prompt: str, turn: int) -> int:
    """The seed of one turn of one prompt: the same for all methods, and whichever prompts run besides."""
    text = f"{seed}/{prompt_set}/{prompt}/{turn}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def split_temperatures(text: str) -> tuple[float, ...]:
    """Numbers from "0,1". Raises UserError."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UserError("Give temperatures as numbers from 0 up, separated by commas, like 0,1.") from None
