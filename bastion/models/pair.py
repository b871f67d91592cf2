"""Load a target, its drafter and its tokenizer; every way this can fail is one UserError."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bastion.errors import UserError
from bastion.models.attention import register as register_attention
from bastion.models.device import device_name, pick_device, pick_dtype
from bastion.models.presets import PRESETS, Preset
from bastion.models.quick_modules import quicken
from bastion.models.registry import Drafter, load_drafter
from bastion.models.target import Target
from bastion.models.tokenizer import Tokenizer
from bastion.models.windows import windows_of

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass
class Pair:
    """A target and the drafter that proposes for it, ready on one device."""

    name: str
    target: Target
    tokenizer: Tokenizer | None
    drafter: Drafter | None = None
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    drafter_name: str = ""
    attention: str = "bastion"

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
) -> Pair:
    """Load a preset by name, or a target and a drafter by folder or hub name.

    Without a drafter only the methods that need none run. No code from a model folder or the hub
    is ever executed, and only safetensors are read. Raises UserError.
    """
    preset = PRESETS.get(str(target))
    name = preset.name if preset else str(target)
    source = preset.target if preset else str(target)
    drafter_source = str(drafter) if drafter is not None else preset.drafter if preset else None
    if preset is not None and preset.is_default:
        _check_default(preset)
    place = pick_device(device)
    model = _load_target(source, place, dtype)
    wrapped = Target(model, name=_short_name(source))
    loaded_tokenizer = _load_tokenizer(str(tokenizer) if tokenizer is not None else source, required=tokenizer is not None)
    loaded_drafter = None
    if drafter_source is not None:
        loaded_drafter = load_drafter(_drafter_folder(drafter_source), wrapped)
        wrapped.watch(loaded_drafter.feature_layer_ids)
    return Pair(
        name=name,
        target=wrapped,
        tokenizer=loaded_tokenizer,
        drafter=loaded_drafter,
        stop_token_ids=_stop_tokens(model, loaded_tokenizer),
        drafter_name=_short_name(drafter_source) if drafter_source is not None else "",
    )


def _check_default(preset: Preset) -> None:
    if not (Path(preset.target) / "config.json").exists():
        raise UserError(
            "The default model is not on this machine yet: run `python -m bastion fetch` once "
            "(or `python -m bastion fetch --from FILE` without a network)."
        )


def _load_target(source: str, device: torch.device, dtype: str):
    from transformers import AutoConfig, AutoModelForCausalLM

    local = _is_local(source)
    config = _from_hub(lambda: AutoConfig.from_pretrained(source, local_files_only=local), source, "target")
    windows_of(config.get_text_config(), source)  # refused before the weights are fetched
    chosen = pick_dtype(dtype, device)
    model = _from_hub(
        lambda: AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=chosen,
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

    local = _is_local(source)
    try:
        backend = _from_hub(lambda: AutoTokenizer.from_pretrained(source, local_files_only=local), source, "tokenizer")
    except UserError:
        if required:
            raise
        return None
    return Tokenizer(backend)


def _drafter_folder(source: str) -> Path:
    if _is_local(source):
        return Path(source).expanduser()
    from huggingface_hub import snapshot_download

    patterns = ["config.json", "growth.json", "*.safetensors", "*.safetensors.index.json"]
    return Path(_from_hub(lambda: snapshot_download(source, allow_patterns=patterns), source, "drafter"))


def _is_local(source: str) -> bool:
    """Whether `source` is a folder here; UserError when it is neither that nor a hub name."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return True
    if HUB_NAME.fullmatch(source) and not source.startswith("."):
        return False
    known = ", ".join(PRESETS)
    raise UserError(f"There is no folder {source!r}, and it is no preset ({known}) or hub name such as Qwen/Qwen3-4B.")


def _from_hub(load, source: str, role: str):
    """Run a loader of transformers or of the hub; whatever it raises becomes one sentence."""
    try:
        return load()
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"The {role} {source} needs a package that is not installed: {_first_line(error)}") from None
    except Exception as error:  # the libraries raise OSError, ValueError, KeyError, HTTP and parser errors alike
        reason = _first_line(error)
        if Path(source).expanduser().is_dir():
            raise UserError(f"The {role} in {source} cannot be loaded: {reason}") from None
        raise UserError(
            f"The {role} {source} cannot be fetched from the Hugging Face hub: {reason} "
            "Check the name, the network and your access, or give a folder."
        ) from None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".") + "."


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
