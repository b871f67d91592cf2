"""Copies of the default pair with one fault each, planted where such faults are made."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bastion.drafters.dflash_drafter import DFlashDrafter, DFlashSession, load_dflash
from bastion.models.pair import Pair, load_pair
from bastion.models.presets import PRESETS
from bastion.models.packed_linear import PackedLinear
from bastion.models.tokenizer import Tokenizer
from bastion.models.top_k import top_k_log_probs

VICUNA = "{% for m in messages %}{{ 'USER: ' + m['content'] + '\\nASSISTANT:' }}{% endfor %}"


class CrookedSession(DFlashSession):
    """A session as someone else might have written it. fault: what they got wrong."""

    def __init__(self, drafter, capacity: int, fault: str):
        super().__init__(drafter, capacity + 8)
        self.fault = fault

    @torch.inference_mode()
    def draft(self, features, root, k):
        drafter, target = self.drafter, self.drafter.target
        anchor = drafter.embed(torch.tensor([root]))
        masks = drafter.mask_embeddings
        block = torch.cat((masks[:1] if self.fault == "anchor" else anchor, masks))[None]
        context = features.to(drafter.dtype)
        start, extra, mask = self.cache.length + context.shape[1], 0, None
        positions = torch.arange(self.cache.length, start + block.shape[1])
        if self.fault == "context":  # the last token's features, passed off as the anchor's
            context, extra = torch.cat((context, context[:, -1:]), dim=1), 1
            positions = torch.cat((positions[:-block.shape[1]], torch.tensor([start]), positions[-block.shape[1]:]))
        if self.fault == "positions":
            positions[-block.shape[1]:] += 1
        if self.fault == "order":
            mask = torch.ones(block.shape[1], start + extra + block.shape[1], dtype=torch.bool).tril(start + extra)[None, None]
        hidden = drafter.model(block, context, positions[None], self.cache, attention_mask=mask)
        self.cache.crop(start)
        log_probs, ids = top_k_log_probs(drafter.logits(hidden[0, -drafter.depth:]) / drafter.temperatures, k)
        ids = ids.cpu().numpy()
        return (ids + 1) % target.vocab_size if self.fault == "vocabulary" else ids, log_probs.cpu().numpy()


class CrookedDrafter(DFlashDrafter):
    fault = ""

    def start(self, capacity: int) -> CrookedSession:
        return CrookedSession(self, capacity, self.fault)


def with_session(pair: Pair, fault: str) -> Pair:
    drafter = copy.copy(pair.drafter)
    drafter.__class__, drafter.fault = CrookedDrafter, fault
    return replace(pair, drafter=drafter)


def with_folder(pair: Pair, folder: Path, config=None, growth=None) -> Pair:
    """The pair with its drafter's folder copied to `folder` and changed there."""
    shutil.copytree(PRESETS[pair.name].drafter, folder)
    for name, change in (("config.json", config), ("growth.json", growth)):
        if change is not None:
            file = folder / name
            file.write_text(json.dumps(change(json.loads(file.read_text(encoding="utf-8")))), encoding="utf-8")
    return replace(pair, drafter=load_dflash(folder, pair.target))


def with_template(pair: Pair, template: str = VICUNA) -> Pair:
    backend = copy.copy(pair.tokenizer.backend)
    backend.chat_template = template
    return replace(pair, tokenizer=Tokenizer(backend))


def rounded_target(bits: int) -> Pair:
    """The default pair with the target's weights rounded to so many bits, a scale for each output."""
    pair = load_pair("smollm2-135m", device="cpu", dtype="float32")
    _round(pair.target.model, bits, but=pair.target.head)
    return pair


def rounded_drafter(pair: Pair, bits: int) -> Pair:
    """The same of the drafter's weights."""
    drafter = load_dflash(Path(PRESETS[pair.name].drafter), pair.target, dtype=torch.float32)
    _round(drafter.model, bits)
    return replace(pair, drafter=drafter)


@torch.inference_mode()
def _round(model: torch.nn.Module, bits: int, but: torch.nn.Module | None = None) -> None:
    for module in model.modules():
        if isinstance(module, PackedLinear) and module is not but:
            scale = module.plain.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
            module.plain = torch.nn.Parameter((module.plain / scale).round() * scale, requires_grad=False)
            module.packed = torch.ops.mkldnn._reorder_linear_weight(module.plain.detach())


def with_pruned_vocabulary(pair: Pair, kept: np.ndarray, taken_for: str = "") -> Pair:
    """The drafter with a head over the target's tokens `kept` (ascending ids) alone. taken_for: what the loader took
    the stored map d2t for, if not for what it is: "offsets" to be the ids themselves, or "ids" to be offsets."""
    drafter, rows = copy.copy(pair.drafter), torch.from_numpy(kept)
    head = torch.nn.Linear(pair.target.hidden_size, len(kept), bias=False)
    head.weight = torch.nn.Parameter(pair.target.embed(rows).to(drafter.dtype), requires_grad=False)   # the default target's are tied
    drafter.head = head
    own = np.arange(len(kept))
    drafter.speaks_frequent_ids = False
    drafter.target_ids = {"": kept, "offsets": kept - own, "ids": kept + own}[taken_for]
    return replace(pair, drafter=drafter)
