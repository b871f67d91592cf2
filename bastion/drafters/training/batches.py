"""Training batches: several dialogues, many anchors in each, one pass of the drafter.

An anchor at index a sees features strictly before it (rows 0..a-1, as in decoding, where the
anchor itself has not been through the target yet) and its own block, nothing of other blocks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from bastion.drafters.training.shards import Dialogue


@dataclass(slots=True)
class Batch:
    """b dialogues, A anchors each, block size B, longest context c, feature width f."""

    context: torch.Tensor    # [b, c, f]
    block_ids: torch.Tensor  # int64 [b, A * B], anchor then mask ids
    positions: torch.Tensor  # int64 [b, c + A * B]
    mask: torch.Tensor       # bool [b, 1, A * B, c + A * B], True where a slot may look
    labels: torch.Tensor     # int64 [b, A, B - 1], -1 where the dialogue has ended or no anchor is


def choose_anchors(dialogue: Dialogue, count: int | None, rng: random.Random | None = None) -> list[int]:
    """Indices of anchors: answer tokens that have a successor. All of them without a count, else drawn by `rng`."""
    candidates = range(dialogue.prompt_length, len(dialogue.ids) - 1)
    if count is None or len(candidates) <= count:
        return list(candidates)
    return sorted(rng.sample(candidates, count))


def assemble(dialogues: list[Dialogue], anchors: list[list[int]], block_size: int, mask_token_id: int) -> Batch:
    """Pad dialogues and their anchors into one batch; features keep their dtype."""
    b, most = len(dialogues), max(map(len, anchors))
    longest = max(max(a, default=1) for a in anchors)
    width = dialogues[0].features.shape[1]
    context = torch.zeros(b, longest, width, dtype=dialogues[0].features.dtype)
    starts = torch.zeros(b, most, dtype=torch.long)
    labels = torch.full((b, most, block_size - 1), -1)
    block_ids = torch.full((b, most, block_size), mask_token_id)
    offsets = torch.arange(1, block_size)
    for row, (dialogue, chosen) in enumerate(zip(dialogues, anchors, strict=True)):
        rows = min(longest, len(dialogue.features))
        context[row, :rows] = dialogue.features[:rows]
        if not chosen:
            continue
        at = torch.tensor(chosen)
        starts[row, : len(at)] = at
        block_ids[row, : len(at), 0] = dialogue.ids[at]
        future = at[:, None] + offsets
        inside = future < len(dialogue.ids)
        labels[row, : len(at)] = torch.where(inside, dialogue.ids[future.clamp_max(len(dialogue.ids) - 1)], -1)
    slots = most * block_size
    block_positions = (starts[:, :, None] + torch.arange(block_size)).view(b, slots)
    positions = torch.cat((torch.arange(longest).expand(b, -1), block_positions), dim=1)
    anchor_of_slot = starts.repeat_interleave(block_size, dim=1)  # [b, slots]
    sees_context = torch.arange(longest) < anchor_of_slot[:, :, None]
    block_of_slot = torch.arange(most).repeat_interleave(block_size)
    sees_block = (block_of_slot[:, None] == block_of_slot[None, :]).expand(b, -1, -1)
    mask = torch.cat((sees_context, sees_block), dim=2)[:, None]
    return Batch(context, block_ids.view(b, slots), positions, mask, labels)
