"""How much memory a pair needs, said from its sizes before anything is loaded. No torch, but to ask which families run lean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bastion.latency.shape import ModelShape
from bastion.models.presets import PRESETS, Preset

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
CONTEXT = 4096
"""Tokens of prompt and answer that the KV cache is reckoned for."""
WORTH_SAYING = 1_000_000_000
"""Bytes under which a pair loads in seconds anywhere, so that nothing is said."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes. drafter, small_lm: its weights and its own cache; 0 without one."""

    weights: int
    kv_cache: int
    drafter: int
    dtype: str
    context: int
    small_lm: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.drafter + self.small_lm

    def words(self) -> str:
        """Such as `18.9 GB in bfloat16 (weights 16.4, KV cache of 4096 tokens 0.6, drafter 1.9)`."""
        parts = [f"weights {_gb(self.weights)}", f"KV cache of {self.context} tokens {_gb(self.kv_cache)}"]
        if self.drafter:
            parts.append(f"drafter {_gb(self.drafter)}")
        if self.small_lm:
            parts.append(f"small model {_gb(self.small_lm)}")
        return f"{_gb(self.total)} GB in {self.dtype} ({', '.join(parts)})"


def memory_needed(
    model: str | Preset | Mapping[str, Any] | Any, drafter: str | Mapping[str, Any] | None = None, dtype: str = "bfloat16",
    context: int = CONTEXT, small_lm: str | Mapping[str, Any] | None = None, on_cpu: bool = False,
) -> MemoryNeed | None:
    """What a preset (its name or itself), a folder, or a Hugging Face config (object or dict) takes to load and decode.

    drafter, small_lm: a folder or a parsed config.json; a preset brings its own drafter. Norms and working memory are left out, so the
    truth is a little more. on_cpu: keys and values are then in float32 for the families that run lean, whatever the weights are in.
    None when the sizes are not known without asking the hub. UserError on a strange dtype.
    """
    if dtype not in BYTES:
        raise UserError(f"There is no number type {dtype!r}; use {', '.join(BYTES)}.")
    preset = model if isinstance(model, Preset) else PRESETS.get(model) if isinstance(model, str) else None
    if preset is not None:
        shape = preset.shape or _shape(preset.target)
        drafted = _drafter_sizes(preset.drafter if drafter is None else drafter)
        if drafted is None and drafter is None and preset.drafter_shape is not None:
            drafted = preset.drafter_shape, preset.drafter_features * preset.drafter_shape.hidden**2
    else:
        shape, drafted = _shape(model), _drafter_sizes(drafter)
    if shape is None:
        return None
    size, longest = BYTES[dtype], context
    extra = 0
    if drafted is not None:
        extra = size * (drafted[0].layer_weights + drafted[1]) + _cache(drafted[0], longest, size)
    elif drafter is not None and "dflash_config" not in (_config(drafter) or {}):
        extra = _model_bytes(drafter, longest, size, on_cpu)  # a small language model
    kept = _target_cache(preset if preset is not None else model, shape, longest, size, on_cpu)
    return MemoryNeed(size * _weights(shape), kept, extra, dtype, longest, _model_bytes(small_lm, longest, size, on_cpu))


def _model_bytes(config: str | Mapping[str, Any] | None, context: int, size: int, on_cpu: bool) -> int:
    """Bytes of a whole model and its cache; 0 without one, or where its sizes are not known."""
    shape = None if config is None else _shape(config)
    return 0 if shape is None else size * _weights(shape) + _target_cache(config, shape, context, size, on_cpu)


def _target_cache(model: Any, shape: ModelShape, context: int, size: int, on_cpu: bool) -> int:
    """Bytes of a target's keys and values: those of a `RowCache` on a CPU where it runs lean, else its number type's own."""
    if not on_cpu:
        return _cache(shape, context, size)
    from bastion.models.number_type import is_lean

    config = _config(model.target if isinstance(model, Preset) else model)
    # a preset that is not here yet is of a family that runs lean
    lean = isinstance(model, Preset) if config is None else is_lean(config)
    # which keeps keys and values of half precision in float32
    return _cache(shape, context, max(size, BYTES["float32"]) if lean else size)


def _weights(shape: ModelShape) -> int:
    return shape.layer_weights + shape.head_weights * (1 if shape.tied else 2)


def check_memory(need: MemoryNeed, free: int | None, name: str, device: str) -> None:
    """UserError with the numbers when `need` is plainly more than the `free` bytes of `device` (None: not known)."""
    if free is not None and need.total > free:
        raise UserError(
            f"{name} does not fit: it needs about {need.words()}, and {device} has {_gb(free)} GB free. Take a smaller pair"
            f"{' or --dtype bfloat16' if BYTES[need.dtype] > 2 else ''}, free some memory, or load it all the same: --force, "
            "load_pair(force=True), or for the app BASTION_FORCE_LOAD=1 in its environment."
        )


def said_before_loading(model: str, drafter: str | None, dtype: str, small_lm: str | None = None, on_cpu: bool = False) -> str:
    """`needs about ... GB ...` for a pair worth a word, else nothing."""
    need = memory_needed(model, drafter, dtype, small_lm=small_lm, on_cpu=on_cpu)
    return f"needs about {need.words()}" if need is not None and need.total >= WORTH_SAYING else ""


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f}" if count < 99.95e9 else f"{count / 1e9:.0f}"


def _cache(shape: ModelShape, context: int, size: int) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * context * size


def _shape(model: str | Any) -> ModelShape | None:
    config = _config(model)
    if config is None:
        return None
    try:
        return ModelShape.from_config(config)
    except (UserError, TypeError, ValueError, ArithmeticError):  # sizes named otherwise, or damaged: loading will say
        return None


def _drafter_sizes(drafter: str | Mapping[str, Any] | None) -> tuple[ModelShape, int] | None:
    """The layers of a DFlash drafter, and the weights beside them: `fc`, and a head of its own."""
    config = _config(drafter)
    if not isinstance(config, Mapping):
        return None
    layers = config.get("transformer_layer_config") or config
    shape = _shape(layers)
    draft = config.get("dflash_config")
    ids = config.get("aux_hidden_state_layer_ids") or {**config, **(draft if isinstance(draft, Mapping) else {})}.get("target_layer_ids")
    if shape is None or not isinstance(ids, list):
        return None
    drafted = config.get("draft_vocab_size")
    own_head = drafted * shape.hidden if isinstance(drafted, int) and drafted != shape.vocab else 0
    return shape, len(ids) * shape.hidden**2 + own_head


def _config(source: Any) -> Any:
    """The parsed config.json of a folder; None when it cannot be read here; what is no name is a config already."""
    if not isinstance(source, (str, Path)):
        return source
    try:
        found = json.loads((Path(source).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
