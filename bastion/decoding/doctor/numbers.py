"""Tests on number types and weights: the target as its folder holds it, the drafter in float32."""

from __future__ import annotations

import copy
from typing import Any

import torch

from bastion.decoding.doctor.bench import Bench
from bastion.decoding.doctor.drafting import Change, Variant
from bastion.drafters.dflash_drafter import load_dflash
from bastion.errors import UserError
from bastion.models.pair import Pair, load_pair
from bastion.models.target import Target

LARGEST = 1_000_000_000
"""Parameters of a target that is loaded a second time without being asked for."""


def target_weights(bench: Bench) -> list[Variant]:
    pair = bench.pair
    source = getattr(pair.target.model.config, "_name_or_path", "")
    if not source:
        raise UserError("It is not known where the target was loaded from.")
    size = _parameters(pair.target)
    if size > LARGEST:
        raise UserError(f"The target has {size / 1e9:.1f} billion parameters, too many to load a second time beside it.")
    cured = _Cure(bench, source)
    return [Variant("target as its folder holds it, in float32", "the target's weights or number type are not those the drafter was trained "
                    f"with: load {source} unquantised, with --dtype float32", Change(answers=cured.answers, drafter=cured.drafter))]


def _parameters(target: Target) -> int:
    shape = target.config
    return target.vocab_size * target.hidden_size + target.layers * target.hidden_size * (
        4 * target.hidden_size + 3 * getattr(shape, "intermediate_size", 4 * target.hidden_size))


class _Cure:
    """The second target, loaded when it is first needed and let go with the variant."""

    def __init__(self, bench: Bench, source: str):
        self.bench, self.source = bench, source
        self.pair: Pair | None = None

    def answers(self):
        loaded = load_pair(self.source, device=str(self.bench.pair.device), dtype="float32")
        drafter = beside(self.bench.pair.drafter, loaded.target)
        loaded.target.watch(drafter.feature_layer_ids)
        self.pair = Pair(self.bench.pair.name, loaded.target, loaded.tokenizer, drafter, loaded.stop_token_ids)
        return self.bench.contrasted(self.pair, self.bench.pair.tokenizer.encode_prompt)

    def drafter(self):
        return self.pair.drafter


def beside(drafter: Any, target: Target) -> Any:
    """The same drafter beside another target, whose embedding and head it then uses."""
    moved = copy.copy(drafter)
    moved.target = target
    if drafter.head is drafter.target.head:
        moved.head = target.head_in(drafter.dtype)
    elif drafter.embedding is None and drafter.target_ids is None:
        moved.head = torch.nn.Sequential(target.head_in(drafter.dtype))
    if drafter.embedding is None:
        ids = torch.full((len(drafter.mask_embeddings),), drafter.model.config.mask_token_id, device=target.device)
        with torch.inference_mode():
            moved.mask_embeddings = moved.embed(ids)
    return moved


def _shape(drafter: Any) -> tuple:
    return len(drafter.feature_layer_ids), drafter.depth, None if drafter.target_ids is None else len(drafter.target_ids)


def drafter_type(bench: Bench) -> list[Variant]:
    folder, pair = bench.drafter_source, bench.pair
    if folder is None:
        raise UserError("It is not known which folder the drafter was loaded from; name it with --drafter.")
    loaded = load_dflash(folder, pair.target, dtype=torch.float32).with_every_id()
    if _shape(loaded) != _shape(pair.drafter):
        raise UserError(f"The drafter in {folder} is not shaped like the loaded one, so it cannot stand in for it.")
    mended = copy.copy(pair.drafter)
    mended.model, mended.head, mended.dtype = loaded.model, loaded.head, loaded.dtype
    mended.mask_embeddings = pair.drafter.mask_embeddings.float()
    return [Variant("drafter as its folder holds it, in float32", f"the drafter's weights or number type are not those in {folder}: load "
                    "it again, in float32", Change(drafter=lambda: mended))]
