"""Loading a small language model that drafts, and the checks that it speaks the target's tokens."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from bastion.drafters.dflash_drafter import drafting_dtype
from bastion.drafters.small_lm import SmallLmDrafter
from bastion.drafters.small_lm_config import SHARED, SHARED_PARTS, is_small_lm
from bastion.errors import UserError
from bastion.models.attention import register as register_attention
from bastion.models.hub import first_line
from bastion.models.quick_modules import quicken
from bastion.models.registry import DrafterLoader
from bastion.models.target import Target
from bastion.models.tokenizer import Tokenizer


class LentEmbedding(nn.Module):
    """The target's embedding in another number type, without the scaling that some models put on top."""

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.dtype = dtype

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, self.weight).to(self.dtype)


def load_small_lm(folder: Path, target: Target) -> SmallLmDrafter:
    """Any causal language model in transformers' layout, or one without the parts that are the target's. UserError."""
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = _with_lent_parts(folder, settings, target) if SHARED in settings else _whole(folder, settings, target)
    model = quicken(model.eval().requires_grad_(False).to(target.device))
    own = _tokenizer(folder)
    return SmallLmDrafter(Target(model, folder.name), target, partial(check_same_tokens, own, small_name=folder.name, target_name=target.name))


def _tokenizer(folder: Path) -> Tokenizer | None:
    from transformers import AutoTokenizer

    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True))
    except Exception as error:  # as above
        raise UserError(f"The tokenizer of the small model in {folder} cannot be read: {first_line(error)}") from None


def _whole(folder: Path, settings: dict, target: Target) -> nn.Module:
    from transformers import AutoModelForCausalLM

    stored = getattr(torch, str(settings.get("dtype") or settings.get("torch_dtype") or "float32"), torch.float32)
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype=drafting_dtype(target, stored), attn_implementation=register_attention(), use_safetensors=True,
            local_files_only=True, output_loading_info=True,
        )
    except Exception as error:  # the library raises OSError, ValueError, KeyError and parser errors alike
        raise UserError(f"The small model in {folder} cannot be loaded: {first_line(error)}") from None
    if found["missing_keys"] or found["mismatched_keys"]:
        raise _wrong_weights(folder, [*found["missing_keys"], *found["mismatched_keys"]])
    return model


def _with_lent_parts(folder: Path, settings: dict, target: Target) -> nn.Module:
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    if sorted(settings[SHARED]) != sorted(SHARED_PARTS):
        raise UserError(f"{folder / 'config.json'} says that {settings[SHARED]} come from the target; only {SHARED_PARTS} together can.")
    for key, wanted in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        if settings.get(key) != wanted:
            raise UserError(f"The small model {folder.name} takes embedding and head from its target, and {target.name} is another one: its "
                            f"{key} is {wanted} and not {settings.get(key)}. Give a small model that was trained for this target.")
    try:
        tensors = load_file(folder / "model.safetensors")
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        config.vocab_size, config.pad_token_id = 1, None  # the embedding and head made here are thrown away
        model = AutoModelForCausalLM.from_config(config, attn_implementation=register_attention())
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UserError(f"The small model in {folder} cannot be loaded: {first_line(error)}") from None
    wanted = {name for name in model.state_dict() if not any(part in name for part in SHARED_PARTS)}
    wrong = sorted(wanted ^ tensors.keys()) or sorted(n for n in wanted if model.state_dict()[n].shape != tensors[n].shape)
    if wrong:
        raise _wrong_weights(folder, wrong)
    dtype = drafting_dtype(target, stored=next(iter(tensors.values())).dtype)
    model.load_state_dict(tensors, strict=False)
    model.to(dtype)
    model.set_input_embeddings(LentEmbedding(target.embedding.weight, dtype))
    model.set_output_embeddings(target.head_in(dtype))
    return model


def _wrong_weights(folder: Path, names: list[str]) -> UserError:
    shown = ", ".join(map(str, names[:3])) + (", ..." if len(names) > 3 else "")
    return UserError(f"The small model's weights in {folder} do not match its config.json ({shown}); copy both again.")


def check_same_tokens(small: Tokenizer | None, target: Tokenizer | None, *, small_name: str, target_name: str) -> None:
    """UserError where an id stands for one token to the small model and for another to the target. Tokens that only one
    of them has, such as those added to fill a table, do no harm. Nothing is known without both tokenizers."""
    if small is None or target is None:
        return
    own, theirs = small.backend.get_vocab(), target.backend.get_vocab()
    ids = {token_id: token for token, token_id in own.items()}
    for token, token_id in theirs.items():
        if own.get(token, token_id) != token_id:
            said = f"{token!r} is token {own[token]} of one and {token_id} of the other"
        elif ids.get(token_id, token) != token:
            said = f"token {token_id} is {ids[token_id]!r} of one and {token!r} of the other"
        else:
            continue
        raise UserError(f"The small model {small_name} cannot draft for {target_name}: their tokenizers differ ({said}). "
                        "Give a model of the same family, with the same tokenizer.")


LOADER = DrafterLoader("small language model", is_small_lm, load_small_lm, gives="levels")
