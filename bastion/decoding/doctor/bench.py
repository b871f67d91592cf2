"""What a test works with: the pair, what the target was asked, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bastion.decoding.doctor.material import Answer, collect, read
from bastion.models.pair import Pair
from bastion.models.presets import PRESETS

COMPARED = 5
"""Prompts on which other answers are compared."""


@dataclass(frozen=True, slots=True)
class Bench:
    pair: Pair
    prompts: tuple[str, ...]
    answers: tuple[Answer, ...]
    tokens: int
    drafter_folder: Path | None = None

    @property
    def drafter_source(self) -> Path | None:
        """The folder that the drafter came from, where it is known."""
        if self.drafter_folder is not None:
            return self.drafter_folder
        preset = PRESETS.get(self.pair.name)
        folder = Path(preset.drafter) if preset is not None else None
        return folder if folder is not None and folder.is_dir() else None

    def contrasted(self, other: Pair, encode: Callable[[str], list[int]]) -> tuple[list[Answer], list[Answer]] | None:
        """(as loaded, as proposed): both read the same texts, half of them written as loaded and half as proposed,
        since each side follows its own words more easily. `other` reads and writes the proposed side, from the
        prompts that `encode` makes. None when it makes no difference to what the drafter is given.
        """
        layers = list(self.answers[0].features)
        before, after = [], []
        for text in self.prompts:
            prompt, proposed = self.pair.tokenizer.encode_prompt(text), encode(text)
            own = next((one for one in self.answers if list(one.ids[:one.prompt_length]) == prompt), None)
            if own is None:
                continue
            swapped = read(other.target, [*proposed, *own.ids[own.prompt_length:]], len(proposed), layers)
            if not before and swapped.ids == own.ids and all((swapped.features[i] == own.features[i]).all() for i in layers):
                return None
            written = _written(other, proposed, self.tokens, layers)
            if written is None:
                continue
            before += [own, read(self.pair.target, [*prompt, *written.ids[written.prompt_length:]], len(prompt), layers)]
            after += [swapped, written]
            if len(before) == 2 * COMPARED:
                break
        return before, after


def _written(pair: Pair, prompt: Sequence[int], tokens: int, layers: Sequence[int]) -> Answer | None:
    found = collect(pair, [prompt], tokens, layers, needed=False)
    return found[0] if found else None
