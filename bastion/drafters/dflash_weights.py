"""The tensors of a DFlash folder, sorted into what the layers take and what stands beside them.

Some folders fuse queries, keys and values into `qkv_proj`; they are read as speculators 0.9.0 converts
them (`convert/dflash/converter.py`): rows are split, gates (`g_proj`) and norms of single features
(`aux_hidden_norms`) are dropped, and of a wider `fc` the first columns are kept.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel
from bastion.errors import UserError

log = logging.getLogger(__name__)

NOT_READ = ("verifier_lm_head.", "verifier_norm.", "rotary_emb.")
FUSED_EXTRAS = (".g_proj.", "aux_hidden_norms.")


@dataclass(frozen=True)
class Extras:
    """What a folder may bring beside the layers; None where the target's own is used."""

    embedding: torch.Tensor | None = None
    """[vocab, hidden]."""
    head: torch.Tensor | None = None
    """[draft vocab, hidden]."""
    target_offsets: torch.Tensor | None = None
    """`d2t`, int64 [draft vocab]: the target's id of draft id i is i + target_offsets[i]."""
    drafted: torch.Tensor | None = None
    """`t2d`, bool [vocab]: which of the target's ids can be drafted."""


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder's safetensors files. Raises UserError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"There is no model.safetensors in {folder}; only safetensors weights are read.")
    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"The drafter's weights in {folder} cannot be read ({error}); copy them again.") from None


def build(config: DFlashConfig, folder: Path) -> tuple[DFlashDraftModel, Extras]:
    """The layers with their weights, and what the folder brings beside them. Raises UserError."""
    tensors = {name: tensor for name, tensor in read_tensors(folder).items() if not name.startswith(NOT_READ)}
    beside = {name: tensors.pop(name, None) for name in ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")}
    if any(".qkv_proj." in name for name in tensors):
        tensors = _unfused(tensors, config)
    config = replace(config, qk_norm=any(name.endswith(".q_norm.weight") for name in tensors))
    with torch.device("meta"):
        model = DFlashDraftModel(config)
    wanted = model.state_dict()
    wrong = sorted(
        (wanted.keys() ^ tensors.keys())
        | {name for name in wanted.keys() & tensors.keys() if wanted[name].shape != tensors[name].shape}
    )
    for name, rows in (("embed_tokens.weight", config.vocab_size), ("lm_head.weight", config.draft_vocab_size or config.vocab_size)):
        if beside[name] is not None and beside[name].shape != (rows, config.hidden_size):
            wrong.append(name)
    if wrong:
        shown = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise UserError(f"The drafter's weights in {folder} do not match its config.json ({shown}); copy both again.")
    model.load_state_dict(tensors, assign=True)
    return model, Extras(*beside.values())


def _unfused(tensors: dict[str, torch.Tensor], config: DFlashConfig) -> dict[str, torch.Tensor]:
    sizes = [heads * config.head_dim for heads in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
    apart: dict[str, torch.Tensor] = {}
    dropped = []
    for name, tensor in tensors.items():
        if any(part in name for part in FUSED_EXTRAS):
            dropped.append(name)
        elif ".qkv_proj." in name and len(tensor) == sum(sizes):
            for part, rows in zip("qkv", tensor.split(sizes), strict=True):
                apart[name.replace(".qkv_proj.", f".{part}_proj.")] = rows.contiguous()
        else:
            apart[name] = tensor[:, : config.feature_size].contiguous() if name == "fc.weight" else tensor
    if dropped:
        log.warning("left out of the drafter, as its public converter does: %s", ", ".join(sorted(dropped)))
    return apart


def head_of(weight: torch.Tensor, device: torch.device, dtype: torch.dtype) -> nn.Linear:
    """A drafter's own head as a module."""
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    head.weight = nn.Parameter(weight.to(device, dtype), requires_grad=False)
    return head


def target_ids(extras: Extras, draft_vocab: int, vocab: int) -> torch.Tensor:
    """int64 [draft vocab]: the target's id of each id the drafter speaks. Raises UserError on maps that cannot be right."""
    offsets = extras.target_offsets
    if offsets is None or offsets.shape != (draft_vocab,):
        raise UserError(f"The drafter speaks {draft_vocab} of the target's {vocab} tokens and its d2t does not say which; "
                        "copy the drafter's model.safetensors again.")
    ids = torch.arange(draft_vocab) + offsets.to("cpu", torch.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise UserError(f"The drafter's d2t points outside the target's vocabulary of {vocab}; copy its model.safetensors again.")
    if extras.drafted is not None and not torch.equal(extras.drafted.cpu().nonzero().flatten(), ids.sort().values):
        raise UserError("The drafter's vocabulary maps d2t and t2d disagree; copy its model.safetensors again.")
    return ids
