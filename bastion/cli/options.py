"""Options that several commands share, and how they are read. No torch at import."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bastion.errors import UserError

DEFAULT_PRESET = "smollm2-135m"
LONGEST_ID = 18  # digits; any vocabulary ends long before


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Which pair to load: a preset, or a target with or without its drafter; and a small model that drafts beside it."""

    preset: str | None
    target: str | None
    drafter: str | None
    device: str
    dtype: str
    small_lm: str | None = None

    def check(self) -> PairOptions:
        if self.preset and self.target:
            raise UserError("Give --pair or --target, not both.")
        if self.drafter and not self.target:
            raise UserError("--drafter needs --target: name the model it drafts for.")
        return self

    @property
    def name(self) -> str:
        """What load_pair takes first: the preset's name or the target's folder or hub name."""
        return self.target or self.preset or DEFAULT_PRESET

    @property
    def is_default(self) -> bool:
        return self.name == DEFAULT_PRESET and self.target is None


def pair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--pair, --target, --drafter, --small-lm, --device and --dtype, handed over as one `pair_options`; --force, for the process."""

    @click.option("--pair", "preset", metavar="PRESET", help=f"Preset pair of target and drafter.  [default: {DEFAULT_PRESET}]")
    @click.option("--target", metavar="X", help="Target: a folder or hub name of a causal language model, in place of --pair.")
    @click.option("--drafter", metavar="Y", help="Drafter of --target; without one only `ar` runs.")
    @click.option("--small-lm", metavar="Z", help="A small causal language model with the target's tokenizer, a folder or a hub name, "
                                                  "which drafts for the method small-lm.")
    @click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
    @click.option("--dtype", default="auto", show_default=True, help="auto, float32, bfloat16 or float16.")
    @click.option("--force", is_flag=True, help="Load it even when it does not seem to fit into the device's memory.")
    @functools.wraps(command)
    def with_pair(*, preset: str | None, target: str | None, drafter: str | None, small_lm: str | None, device: str, dtype: str,
                  force: bool, **others: Any) -> Any:
        if force:
            os.environ["BASTION_FORCE_LOAD"] = "1"  # reaches every place that loads a pair
        return command(pair_options=PairOptions(preset, target, drafter, device, dtype, small_lm).check(), **others)

    return with_pair


class Finite(click.FloatRange):
    """A number in a range; NaN, which compares false with every bound, and infinities are not in it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is not a number to calculate with.", param, ctx)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--temperature, --top-p, --top-k, --max-new-tokens, --seed and --acceptance, handed over as the dict `sampling`."""

    @click.option("--temperature", metavar="T", type=Finite(min=0), default=0.0, show_default=True, help="0 takes the most probable token.")
    @click.option("--top-p", metavar="P", type=Finite(min=0, max=1, min_open=True), default=1.0, show_default=True,
                  help="Sample within this share of the probability.")
    @click.option("--top-k", metavar="K", type=click.IntRange(min=0), default=0, show_default=True, help="Sample among this many tokens; 0 is no limit.")
    @click.option("--max-new-tokens", metavar="N", type=click.IntRange(min=1), default=256, show_default=True, help="Stop after this many tokens.")
    @click.option("--seed", metavar="N", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Seed of the sampling.")
    @click.option("--acceptance", metavar="RULE", default="walk", show_default=True,
                  help="Above temperature 0: walk, multi-round, block, or reference-argmax, which is not lossless.")
    @functools.wraps(command)
    def with_sampling(*, temperature: float, top_p: float, top_k: int, max_new_tokens: int, seed: int, acceptance: str, **others: Any) -> Any:
        sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "max_new_tokens": max_new_tokens, "seed": seed,
                    "acceptance": acceptance}
        return command(sampling=sampling, **others)

    return with_sampling


json_option = click.option("--json", "json_file", metavar="FILE", help="Write one JSON object to FILE (- for standard output).")


def token_ids(text: str, option: str) -> list[int]:
    """Ids from "1,2,3"; UserError names the option when one is not a whole number from 0 up."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and len(part) <= LONGEST_ID for part in parts):
        raise UserError(f"{option} takes token ids separated by commas, like 1,2,3.")
    return [int(part) for part in parts]


def read_prompt(text: str | None, file: str | None, ids: str | None) -> str | list[int]:
    """The one prompt that was given: text (for the chat template) or token ids (as they are)."""
    given = [name for name, value in (("--prompt", text), ("--prompt-file", file), ("--prompt-ids", ids)) if value is not None]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise UserError(f"Give exactly one of --prompt, --prompt-file and --prompt-ids ({found} given).")
    if ids is not None:
        return token_ids(ids, "--prompt-ids")
    prompt = text if text is not None else read_text(file)
    if not prompt.strip():
        raise UserError(f"The prompt is empty: give some text to {given[0]}.")
    return prompt


def read_text(file: str) -> str:
    """Contents of a UTF-8 file, or of standard input for "-"."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): check the path.") from error
