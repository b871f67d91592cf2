"""Load a target, its drafter and its tokenizer; every way this can fail is one UserError."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bastion.errors import UserError
from bastion.models.beside import Beside, beside, read_drafter
from bastion.models.attention import register as register_attention
from bastion.models.device import device_name, free_memory, pick_device
from bastion.models.hub import from_hub
from bastion.models.memory import WORTH_SAYING, check_memory, memory_needed
from bastion.models.number_type import CAN_DIFFER, number_type
from bastion.models.presets import PRESETS, Preset
from bastion.models.quick_modules import quicken
from bastion.models.registry import Drafter
from bastion.models.static_target import PADDED, target_for
from bastion.models.target import Target
from bastion.models.tokenizer import Tokenizer
from bastion.models.windows import windows_of

FORCE = "BASTION_FORCE_LOAD"
"""Environment variable: when set, no pair is refused for its size."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "special_tokens_map.json")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass
class Pair:
    """A target and the drafter that proposes for it, ready on one device; `beside`, drafters of other kinds for
    the methods that want them."""

    name: str
    target: Target
    tokenizer: Tokenizer | None
    drafter: Drafter | None = None
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    drafter_name: str = ""
    attention: str = "bastion"
    beside: tuple[Beside, ...] = ()
    dtype_why: str = ""
    """Why the target runs in its number type, in a few words."""

    def drafted_by(self, gives: str) -> Pair:
        """The same pair with the drafter that gives this, its own where it does or none of the others does. UserError
        when one is read now and does not fit."""
        if self.drafter is not None and self.drafter.gives == gives:
            return self
        for other in self.beside:
            if other.gives == gives:
                return replace(self, drafter=other.drafter(self.target, self.tokenizer), drafter_name=other.name)
        return self

    @property
    def device(self) -> torch.device:
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        return self.target.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def device_name(self) -> str:
        return device_name(self.device)


def load_pair(
    target: str | os.PathLike = "smollm2-135m",
    drafter: str | os.PathLike | None = None,
    tokenizer: str | os.PathLike | None = None,
    device: str = "auto",
    dtype: str = "auto",
    *,
    small_lm: str | os.PathLike | None = None,
    force: bool = False,
    on_notice: Callable[[str], None] | None = None,
) -> Pair:
    """Load a preset by name, or a target and a drafter by folder or hub name.

    Without a drafter only the methods that need none run. `small_lm`: a causal language model with the target's
    tokenizer, by folder or hub name, which drafts beside the drafter. No code from a model folder or the hub
    is ever executed, and only safetensors are read. `on_notice` hears what memory a large pair
    needs before its weights are fetched, and what a number type that was asked for by name may cost; a pair that
    plainly does not fit is refused unless `force`. dtype: see `number_type`.
    Raises UserError.
    """
    preset = PRESETS.get(str(target))
    name = preset.name if preset else str(target)
    source = preset.target if preset else str(target)
    drafter_source = str(drafter) if drafter is not None else preset.drafter if preset else None
    if preset is not None and preset.is_default:
        _check_default(preset)
    place = pick_device(device)
    config = _target_config(source)
    number = number_type(dtype, place, config)
    chosen = number.dtype
    if on_notice is not None and dtype != "auto" and number.why.endswith(CAN_DIFFER):
        on_notice(f"Loading {name} in {number.words()}")
    small_source = str(small_lm) if small_lm is not None else None
    _mind_memory(preset or config, drafter_source, small_source, name, place, chosen, force, on_notice)
    drafter_folder = _drafter_folder(drafter_source) if drafter_source is not None else None
    others = _beside(small_source, preset if drafter is None else None)
    model = _load_target(source, config, place, chosen)
    wrapped = target_for(model, name=_short_name(source))
    loaded_tokenizer = _load_tokenizer(str(tokenizer) if tokenizer is not None else source, required=tokenizer is not None)
    loaded_drafter = None
    if drafter_folder is not None:
        loaded_drafter = read_drafter(drafter_folder, wrapped, loaded_tokenizer)
        wrapped.watch(loaded_drafter.feature_layer_ids)
    if small_source is not None:
        others[0].drafter(wrapped, loaded_tokenizer)  # what was asked for is checked now
    return Pair(
        name=name,
        target=wrapped,
        tokenizer=loaded_tokenizer,
        drafter=loaded_drafter,
        stop_token_ids=_stop_tokens(model, loaded_tokenizer),
        drafter_name=_short_name(drafter_source) if drafter_source is not None else "",
        attention=PADDED if wrapped.padded else "bastion",
        beside=others,
        dtype_why=number.why,
    )


def _beside(small_lm: str | None, preset: Preset | None) -> tuple[Beside, ...]:
    """The small model that was named, then what the preset brings."""
    found = []
    if small_lm is not None:
        found.append(beside(_drafter_folder(small_lm), _short_name(small_lm)))
        if found[0].gives != "levels":
            raise UserError(f"{small_lm} is no small language model but a drafter of the kind {found[0].kind}; give it as the drafter.")
    for folder in preset.beside if preset is not None else ():
        if (Path(folder) / "config.json").exists():
            found.append(beside(Path(folder), Path(folder).name))
    return tuple(found)


def _check_default(preset: Preset) -> None:
    if not (Path(preset.target) / "config.json").exists():
        raise UserError(
            "The default model is not on this machine yet: run `python -m bastion fetch` once "
            "(or `python -m bastion fetch --from FILE` without a network)."
        )


def _target_config(source: str):
    """The target's config; UserError for one whose attention cannot be served, before any weights are fetched."""
    from transformers import AutoConfig

    _check_name(source)
    config = from_hub(lambda local: AutoConfig.from_pretrained(source, local_files_only=local), source, "target")
    windows_of(config.get_text_config(), source)
    return config


def _mind_memory(model, drafter: str | None, small_lm: str | None, name: str, place: torch.device, dtype: torch.dtype, force: bool, say) -> None:
    own = isinstance(model, Preset)
    need = memory_needed(model, None if own and drafter == model.drafter else drafter, str(dtype).removeprefix("torch."),
                         small_lm=small_lm, on_cpu=place.type == "cpu")
    if need is None or need.total < WORTH_SAYING:
        return
    if say is not None:
        say(f"Loading {name}: it needs about {need.words()}")
    if not force and not os.environ.get(FORCE):
        check_memory(need, free_memory(place), name, str(place))


def _load_target(source: str, config, device: torch.device, dtype: torch.dtype):
    from transformers import AutoModelForCausalLM

    model = from_hub(
        lambda local: AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            attn_implementation=register_attention(),
            use_safetensors=True,
            local_files_only=local,
        ),
        source,
        "target",
    )
    try:
        return quicken(model.eval().requires_grad_(False).to(device))
    except torch.OutOfMemoryError:
        raise UserError(f"{source} does not fit into the memory of {device}; use a smaller model or device='cpu'.") from None


def _load_tokenizer(source: str, required: bool) -> Tokenizer | None:
    """None when the target's own folder has no tokenizer: ids still work."""
    from transformers import AutoTokenizer

    _check_name(source)
    try:
        backend = from_hub(lambda local: AutoTokenizer.from_pretrained(source, local_files_only=local), source, "tokenizer")
    except UserError:
        if required:
            raise
        return None
    return Tokenizer(backend)


def _drafter_folder(source: str) -> Path:
    _check_name(source)
    if Path(source).expanduser().is_dir():
        return Path(source).expanduser()
    from huggingface_hub import snapshot_download

    patterns = ["config.json", "growth.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES]
    load = lambda local: snapshot_download(source, allow_patterns=patterns, local_files_only=local)  # noqa: E731
    return Path(from_hub(load, source, "drafter"))


def _check_name(source: str) -> None:
    """UserError when `source` is neither a folder here nor a hub name."""
    if Path(source).expanduser().is_dir() or (HUB_NAME.fullmatch(source) and not source.startswith(".")):
        return
    known = ", ".join(PRESETS)
    raise UserError(f"There is no folder {source!r}, and it is no preset ({known}) or hub name such as Qwen/Qwen3-4B.")


def _short_name(source: str) -> str:
    return Path(source).name if Path(source).expanduser().is_dir() else source


def _stop_tokens(model, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Ids that end an answer: of the generation config, the model's config and the tokenizer."""
    found: set[int] = set()
    places: Iterable = (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config.get_text_config(), "eos_token_id", None),
        tokenizer.backend.eos_token_id if tokenizer is not None else None,
    )
    for value in places:
        if value is not None:
            found.update([value] if isinstance(value, int) else value)
    return frozenset(int(token) for token in found)
