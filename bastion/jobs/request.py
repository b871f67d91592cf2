"""What a person asks for: a prompt and how to decode it, checked before it enters the queue."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from bastion.errors import UserError

DEFAULT_PRESET = "smollm2-135m"
MAX_PROMPT_CHARACTERS = 200_000
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PairChoice:
    """Which pair to load: a preset by name, or folders or hub names of a target and its drafter; small_lm, of a
    language model with the target's tokenizer that drafts for the method small-lm."""

    preset: str | None = DEFAULT_PRESET
    target: str | None = None
    drafter: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    small_lm: str | None = None

    @property
    def label(self) -> str:
        return self.preset or self.target or ""

    def check(self) -> PairChoice:
        """The choice itself; raises UserError when it names no target. Whether that can be loaded, loading will say."""
        if not self.label.strip():
            raise UserError("No target is named: give a folder or a hub name such as Qwen/Qwen3-4B, or choose a pair of the list.")
        return self


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One decode. `min_nodes` and `max_nodes` bound the tree of an adaptive method, root included;
    no upper bound means the largest tree that the calibration timed. `acceptance`: a rule by name; whether it fits the
    method, decoding will say."""

    prompt: str
    method: str = "bastion"
    pair: PairChoice = PairChoice()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 128
    seed: int = 0
    min_nodes: int = 1
    max_nodes: int | None = None
    yardstick: bool = True
    acceptance: str = "walk"

    def check(self) -> DecodeRequest:
        """The request itself; raises UserError that names the first field that cannot be used."""
        if not self.prompt.strip():
            raise UserError("The prompt is empty: type something or pick one of the examples.")
        if len(self.prompt) > MAX_PROMPT_CHARACTERS:
            raise UserError(f"The prompt has {len(self.prompt):,} characters; shorten it to at most "
                            f"{MAX_PROMPT_CHARACTERS:,}.")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError("Temperature must be a number from 0 up.")
        if not 0 < self.top_p <= 1:
            raise UserError("Top-p must be above 0 and at most 1.")
        if self.top_k < 0:
            raise UserError("Top-k must be 0 (no limit) or a number of tokens.")
        if self.max_new_tokens < 1:
            raise UserError("Ask for at least 1 new token.")
        if not 0 <= self.seed <= MAX_SEED:
            raise UserError(f"The seed must be a whole number from 0 to {MAX_SEED}.")
        if self.min_nodes < 1:
            raise UserError("The tree needs at least 1 node.")
        if self.max_nodes is not None and self.max_nodes < self.min_nodes:
            raise UserError("The largest tree must not be smaller than the smallest: raise it or lower the other.")
        return self

    def sampling(self) -> dict[str, Any]:
        """The plain values that decide what is emitted, as a run's record stores them."""
        values = asdict(self)
        return {name: values[name] for name in ("temperature", "top_p", "top_k", "max_new_tokens", "seed", "acceptance")}
