"""Tests on what the drafter's network is given: the anchor, the masks, positions, the block's order, the context's end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from bastion.decoding.doctor.drafting import Change, Given, Variant, Where
from bastion.models.pair import Pair

SPECIAL_TOKENS = 48
"""Special tokens looked at for the mask, at most."""
ALIKE = 0.01
"""Relative distance of embeddings below which two mask tokens are one."""
LEAK_GAIN = 0.3
"""The anchor's features tell any drafter a little of the next token, so a small gain from them is no fault."""


def embedding(drafter: Any, token: int) -> torch.Tensor:
    """[hidden] of the target's token as the drafter is given it."""
    return drafter.embed(torch.tensor([token], device=drafter.target.device))[0]


def _with_row(given: Given, rows: slice, value: torch.Tensor) -> Given:
    if (given.block[rows] == value).all():
        return given
    block = given.block.clone()
    block[rows] = value
    return replace(given, block=block)


def anchor_put(drafter: Any, given: Given, where: Where) -> Given:
    return _with_row(given, slice(0, 1), embedding(drafter, where.token))


def anchor_taken(drafter: Any, given: Given, where: Where) -> Given:
    return _with_row(given, slice(0, 1), given.block[1])


def anchor(pair: Pair) -> list[Variant]:
    return [
        Variant("anchor's embedding put at slot 0", "give the drafter's block the anchor's embedding at slot 0, before the masks",
                Change(given=anchor_put)),
        Variant("slot 0 masked as well", "the drafter was trained without its anchor: leave slot 0 a mask token, or retrain it",
                Change(given=anchor_taken)),
    ]


def mask_as(token: int):
    def change(drafter: Any, given: Given, where: Where) -> Given:
        return _with_row(given, slice(1, None), embedding(drafter, token))
    return change


def mask_candidates(pair: Pair) -> list[list[int]]:
    """Ids that are plausibly the mask: the tokenizer's special tokens and the ends of the vocabulary. Ids that are
    embedded alike stand together, and what is like the present mask is left out."""
    drafter, size = pair.drafter, pair.target.vocab_size
    special = [] if pair.tokenizer is None else sorted(pair.tokenizer.backend.added_tokens_decoder)
    groups: list[list[int]] = []
    for token in dict.fromkeys([*special[-SPECIAL_TOKENS:], 0, size - 1]):
        if not 0 <= token < size:
            continue
        row = embedding(drafter, token).float()
        group = next((group for group in groups if _alike(row, embedding(drafter, group[0]).float())), None)
        if group is None:
            groups.append(group := [])
        group.append(token)
    now = drafter.mask_embeddings[0].float()
    return [group for group in groups if not _alike(embedding(drafter, group[0]).float(), now)]


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= ALIKE * other.norm())


def mask_id(pair: Pair) -> list[Variant]:
    found = []
    for group in mask_candidates(pair):
        token = group[-1]
        others = "" if len(group) == 1 else f" (or another of {', '.join(map(str, group[:-1]))}, which are embedded alike)"
        found.append(Variant(f"mask token {token}{_spelt(pair, token)}",
                             f"set dflash_config.mask_token_id to {token} in the drafter's config.json{others}", Change(given=mask_as(token))))
    return found


def _spelt(pair: Pair, token: int) -> str:
    text = pair.tokenizer.token_texts([token])[0] if pair.tokenizer is not None else ""
    return f" ({text})" if text.strip() else ""


def positions_put(drafter: Any, given: Given, where: Where) -> Given:
    right = torch.arange(where.place, where.place + len(given.positions), device=given.positions.device)
    before = torch.arange(len(given.context), device=right.device)
    if torch.equal(right, given.positions) and torch.equal(before, given.context_positions):
        return given
    return replace(given, positions=right, context_positions=before)


def shifted(by: int):
    def change(drafter: Any, given: Given, where: Where) -> Given:
        return replace(given, positions=given.positions + by)
    return change


def positions(pair: Pair) -> list[Variant]:
    return [
        Variant("block numbered on from the context", "number the context from 0 and the block on from it, the anchor first",
                Change(given=positions_put)),
        *(Variant(f"block {abs(by)} position{'s' * (abs(by) > 1)} {'later' if by > 0 else 'earlier'}",
                  f"add {by} to the positions of the drafter's block", Change(given=shifted(by))) for by in (-1, 1)),
    ]


def bidirectional(drafter: Any, given: Given, where: Where) -> Given:
    n, c = len(given.block), len(given.context)
    if given.mask is None and not any(_causal_rule(drafter.model, layer) for layer in range(drafter.model.config.num_hidden_layers)):
        return given
    mask = torch.ones(n, c + n, dtype=torch.bool, device=given.block.device)
    return given if given.mask is not None and torch.equal(given.mask, mask) else replace(given, mask=mask)


def causal(drafter: Any, given: Given, where: Where) -> Given:
    n, c = len(given.block), len(given.context)
    mask = torch.ones(n, c + n, dtype=torch.bool, device=given.block.device).tril(c)
    return given if given.mask is not None and torch.equal(given.mask, mask) else replace(given, mask=mask)


def _causal_rule(model: Any, layer: int) -> bool:
    return model.config.attends(layer)[0]


def order(pair: Pair) -> list[Variant]:
    return [
        Variant("block sees all of itself", "let every position of the drafter's block see all of it: no causal mask", Change(given=bidirectional)),
        Variant("block in causal order", "the drafter was trained with causal attention in its block: mask it so", Change(given=causal)),
    ]


def context_cut(drafter: Any, given: Given, where: Where) -> Given:
    """Rows past the tokens before the anchor taken away."""
    if len(given.context) <= where.place:
        return given
    mask = given.mask
    if mask is not None:
        mask = torch.cat((mask[:, :where.place], mask[:, len(given.context):]), dim=1)
    return replace(given, context=given.context[:where.place], context_positions=given.context_positions[:where.place], mask=mask)


def context_with_anchor(drafter: Any, given: Given, where: Where) -> Given:
    """The anchor's own features behind the context's, as a teacher-forced pass has them."""
    if len(given.context) > where.place:
        return given
    mask = None
    if given.mask is not None:
        c = len(given.context)
        mask = torch.cat((given.mask[:, :c], given.mask[:, c - 1:c], given.mask[:, c:]), dim=1)
    here = torch.full((1,), where.place, device=given.positions.device)
    return replace(given, context=torch.cat((given.context, where.features.to(given.context.dtype))),
                   context_positions=torch.cat((given.context_positions, here)), mask=mask)


def context_end(pair: Pair) -> list[Variant]:
    return [
        Variant("features end before the anchor", "give the drafter the features of the tokens before the anchor, and none for the anchor itself",
                Change(given=context_cut)),
        Variant("features include the anchor's", "the drafter was trained on features that include the anchor's, which no decode has yet: retrain it "
                "on those before it", Change(given=context_with_anchor), trusted=False, least_gain=LEAK_GAIN),
    ]
