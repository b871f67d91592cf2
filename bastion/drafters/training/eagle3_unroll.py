"""EAGLE-3's training-time test: the head goes several steps on its own outputs, from many anchors at once.

An anchor at index a is what decoding calls the root: its first step is row a - 1, which holds the
target's features of token a - 1 and the embedding of token a, and guesses token a + 1. Step s puts the
step before's output in the features' place beside token a + s, at position a - 1 + s. It sees the rows
up to a - 1, which have the target's features, and this anchor's own steps: exactly what a path of a
drafted tree sees (EAGLE-3, arXiv 2503.01840, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bastion.drafters.dflash import additive
from bastion.drafters.eagle3 import Eagle3Model
from bastion.drafters.training.shards import Dialogue


@dataclass(slots=True)
class UnrolledBatch:
    """b dialogues, A anchors each, S steps, longest context c, feature width f."""

    context: torch.Tensor    # [b, c, f], features of tokens 0..c-1
    following: torch.Tensor  # int64 [b, c], the token behind each
    anchors: torch.Tensor    # int64 [b, A], 1 where no anchor is
    tokens: torch.Tensor     # int64 [b, A, S], the text's tokens a, a + 1, ...
    labels: torch.Tensor     # int64 [b, A, S], those one further; -1 where the dialogue has ended or no anchor is


def assemble_unrolled(dialogues: list[Dialogue], anchors: list[list[int]], steps: int) -> UnrolledBatch:
    """Pad dialogues and their anchors into one batch. Features of every label's predecessor are kept, for soft labels."""
    b, most = len(dialogues), max(1, *map(len, anchors))
    longest = max(len(d.features) for d in dialogues)
    context = torch.zeros(b, longest, dialogues[0].features.shape[1], dtype=dialogues[0].features.dtype)
    following = torch.zeros(b, longest, dtype=torch.long)
    starts = torch.ones(b, most, dtype=torch.long)
    tokens = torch.zeros(b, most, steps, dtype=torch.long)
    labels = torch.full((b, most, steps), -1)
    for row, (dialogue, chosen) in enumerate(zip(dialogues, anchors, strict=True)):
        rows, last = len(dialogue.features), len(dialogue.ids) - 1
        context[row, :rows], following[row, :rows] = dialogue.features, dialogue.ids[1:]
        if not chosen:
            continue
        at = torch.tensor(chosen)
        starts[row, : len(at)] = at
        ahead = at[:, None] + torch.arange(steps + 1)
        found = torch.where(ahead <= last, dialogue.ids[ahead.clamp_max(last)], -1)
        tokens[row, : len(at)], labels[row, : len(at)] = found[:, :-1].clamp_min(0), found[:, 1:]
    return UnrolledBatch(context, following, starts, tokens, labels)


class OwnSteps:
    """The context's keys and values, then those of every step's rows; what a layer of the unrolled head attends to."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        self.keys, self.values, self.in_context = keys, values, True

    def update(self, keys: torch.Tensor, values: torch.Tensor, _layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.in_context:  # the first step's rows are rows of the context
            self.in_context = False
        else:
            self.keys, self.values = torch.cat((self.keys, keys), dim=2), torch.cat((self.values, values), dim=2)
        return self.keys, self.values


def unroll(
    model: Eagle3Model, embedding: torch.Tensor, batch: UnrolledBatch, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Outputs [b, A, hidden] of the head's layer at each step, before the final norm; the text's own tokens go in.

    embedding: [vocab, hidden], the target's. Heads of one layer under full attention only, as the public layout has them.
    """
    layer, device = model.layers[0], embedding.device
    context, anchors, tokens = batch.context.to(device, dtype), batch.anchors.to(device), batch.tokens.to(device)
    at = anchors - 1
    fused, behind = model.fuse(context), embedding[batch.following.to(device)].to(dtype)
    turns = model.turns(torch.arange(fused.shape[1], device=device)[None], dtype)
    rows = OwnSteps(*layer.self_attn.keys_values(layer.beside(fused, behind)[0], *turns))
    sees = torch.arange(fused.shape[1], device=device) < anchors[:, :, None]
    own = torch.eye(at.shape[1], dtype=torch.bool, device=device).expand(len(at), -1, -1)
    hidden = fused.gather(1, at[:, :, None].expand(-1, -1, fused.shape[2]))
    outputs = []
    for step in range(tokens.shape[2]):
        if step:
            hidden, sees = model.carried(hidden), torch.cat((sees, own), dim=2)
        beside = embedding[tokens[:, :, step]].to(dtype)
        hidden = layer(hidden, beside, *model.turns(at + step, dtype), {None: additive(sees[:, None])}, rows)
        outputs.append(hidden)
    return outputs
