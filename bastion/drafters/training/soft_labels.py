"""The target's own distributions over the text, from the features that are on disk.

The last feature is the output of one of the target's upper layers, so the few layers above it give
the target's logits at a tenth of a whole pass.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from bastion.drafters.training.continuations import library_attention


class Tail(nn.Module):
    """The target's layers above one of them, and its final norm: [b, t, hidden] out of that layer -> what its head reads."""

    def __init__(self, target: nn.Module, above: int):
        super().__init__()
        self.whole = [target]  # in a list: no module of its own
        decoder = target.get_decoder()
        # a shallow copy with fewer layers: masks, positions and the norm stay the library's own
        self.decoder = copy.copy(decoder)
        self.decoder._modules = dict(decoder._modules)
        self.decoder.layers = nn.ModuleList(list(decoder.layers)[above + 1 :])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        with library_attention(self.whole[0]):  # which is causal by itself; ours is given its masks by the caller
            return self.decoder(inputs_embeds=hidden, use_cache=False).last_hidden_state


def agreement(tail: Tail, head: torch.Tensor, feature: torch.Tensor, ids: torch.Tensor, prompt_length: int) -> float:
    """The share of a greedy answer's tokens that the tail's logits have first: about 1 where it computes what the target did.

    feature [t - 1, hidden] of ids int64 [t]; head [vocab, hidden].
    """
    with torch.inference_mode():
        answer = tail(feature.to(head)[None])[0, prompt_length - 1 :]
        return ((answer @ head.t()).argmax(-1).cpu() == ids[prompt_length:]).float().mean().item()
