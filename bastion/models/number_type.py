"""Which number type a target runs in, and why; what `auto` stands for on each device."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from bastion.errors import UserError
from bastion.models.lean import DECODERS
from bastion.models.presets import PRESETS
from bastion.models.linear_kinds import linear_kind, trial_linears, trial_seconds
from bastion.models.sameness import keeps_bits
from bastion.models.trials import answer, tried

log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
AUTO = "BASTION_DTYPE"
"""Environment variable: the number type that `auto` stands for, in place of what is found here."""
CAN_DIFFER = "its ids can differ from plain decoding's where the target's two best tokens tie"
FASTER, SAME_BITS = "bfloat16-is-faster", "keeps-bits"
WITHOUT_A_CONFIG: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class NumberType:
    """why: why it is this one, in a few words."""

    dtype: torch.dtype
    why: str = ""

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def words(self) -> str:
        """Such as `bfloat16 (measured faster here; a tree's tokens have the bits of plain decoding)`."""
        return f"{self.name} ({self.why})" if self.why else self.name


def number_type(name: str, device: torch.device, config: Any) -> NumberType:
    """The number type of this name for a library config on `device`; UserError on a name that is none.

    `auto` is bfloat16 on CUDA and MPS. On a CPU it is bfloat16 where that is measured faster and this target's
    forward gives a token the same bits in a tree and alone (`sameness.keeps_bits`), so that a tree changes how
    fast the answer comes and never the answer; else float32. What is tried for that, is tried once.
    """
    asked = os.environ.get(AUTO) or name if name == "auto" else name
    if asked != "auto":
        if asked not in DTYPES:
            source = f"{AUTO} in the environment: there" if asked != name else "There"
            raise UserError(f"{source} is no number type {asked!r}; use auto, {', '.join(DTYPES)}.")
        return NumberType(DTYPES[asked], _asked_for(DTYPES[asked], device, config) + (f", set by {AUTO}" if asked != name else ""))
    if device.type != "cpu":
        return NumberType(torch.bfloat16, f"the usual one on a GPU; {CAN_DIFFER}")
    if not cpu_prefers_bfloat16():
        return NumberType(torch.float32, "measured no slower here than bfloat16")
    if not bits_are_kept(config):
        return NumberType(torch.float32, f"bfloat16 would be faster here, but {CAN_DIFFER}")
    return NumberType(torch.bfloat16, "measured faster here; a tree's tokens have the bits of plain decoding")


def likely_type(source: str, device: str) -> str | None:
    """What `auto` will turn out to be for a preset, folder or hub name, as far as that is known without trying
    anything or asking the hub; None where it is not."""
    if os.environ.get(AUTO) in DTYPES:
        return os.environ[AUTO]
    if not device.startswith("cpu"):
        return "bfloat16"
    faster = answer(FASTER, WITHOUT_A_CONFIG)
    if not faster:
        return None if faster is None else "float32"
    config = _config_at_hand(PRESETS[source].target if source in PRESETS else source)
    kept = None if config is None else answer(SAME_BITS, _about(config)) if is_lean(config) else False
    return None if kept is None else "bfloat16" if kept else "float32"


def _config_at_hand(source: str) -> Any | None:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _asked_for(dtype: torch.dtype, device: torch.device, config: Any) -> str:
    if dtype in (torch.float32, torch.float64):
        return "as asked"
    if device.type == "cpu" and dtype == torch.bfloat16 and bits_are_kept(config):
        return "as asked; a tree's tokens have the bits of plain decoding"
    return f"as asked; {CAN_DIFFER}"


def bits_are_kept(config: Any) -> bool:
    """`keeps_bits` in bfloat16, tried once on this machine. What cannot be tried is not promised."""
    if not is_lean(config):
        return False

    def ask() -> bool:
        try:
            return keeps_bits(config)
        except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
            log.warning("Whether trees keep the bits of plain decoding could not be tried: %s", error)
            return False

    return tried(SAME_BITS, _about(config), ask)


def is_lean(config: Any) -> bool:
    """Whether a library config, or a parsed config.json, is of a family whose forward on a CPU is our own."""
    kind = config.get("model_type") if isinstance(config, Mapping) else getattr(config.get_text_config(), "model_type", "")
    return f"{kind}model" in {name.lower() for name in DECODERS}


def _about(config: Any) -> dict[str, Any]:
    """What of a config decides how its layers calculate: all but names, ids and how many layers there are."""
    fields = config.get_text_config().to_dict()
    left_out = {"num_hidden_layers", "_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"}
    return {"config": {name: repr(value) for name, value in fields.items() if name not in left_out and not name.endswith("_token_id")}}


@cache
def cpu_prefers_bfloat16() -> bool:
    """Whether the linear layers of a target are quicker in bfloat16 on this CPU, tried once."""
    return tried(FASTER, WITHOUT_A_CONFIG, _bfloat16_is_faster)


def _bfloat16_is_faster() -> bool:
    """Each in the layers that a loaded target has them in."""
    took = trial_seconds({dtype: (dtype, trial_linears(dtype, linear_kind(dtype))) for dtype in (torch.float32, torch.bfloat16)})
    return took[torch.bfloat16] < took[torch.float32]
