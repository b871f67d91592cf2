"""Sliding windows of a target: which layers have one, and the masks a tree is verified under.

A layer with a window of w sees keys at most w - 1 positions back, as transformers masks them
(`masking_utils.sliding_window_overlay`). Row j of the cache stands at position j and a tree node at
the position of its depth, so distance is counted in positions: siblings share one, and rows of the
tree are not positions. The cache keeps rows that have slid out of every window; the mask hides them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bastion.errors import UserError

FULL, SLIDING = "full_attention", "sliding_attention"
ONE_WINDOW = frozenset({"mistral"})
"""Model types whose `sliding_window` holds for every layer; their decoder takes one mask."""
BY_LAYER_TYPE = frozenset({"qwen2", "qwen3", "gemma2", "gemma3_text"})
"""Model types whose `layer_types` say which layers slide; their decoder takes a mask for each type."""
NOT_SERVED = {"gpt_oss": "attention sinks", "gpt_oss_text": "attention sinks"}
"""Model types whose attention has a part that ours lacks."""


@dataclass(frozen=True)
class Windows:
    """window: positions that a sliding layer sees, itself included; None when no layer slides.
    by_type: the decoder takes masks by layer type, not one."""

    window: int | None = None
    by_type: bool = False

    def masks(self, mask: torch.Tensor | None, positions: torch.Tensor, context: int, drafted: torch.Tensor | None = None) -> Any:
        """What the decoder takes as `attention_mask` for n tokens behind `context` cached rows.

        mask: float32 [n, n] among the n tokens, None when all see all; positions int64 [n]. drafted: positions
        int64 [d] of the last d of the cached rows, which are nodes of a tree too; mask is [n, d + n] then.
        """
        full = None if mask is None else mask[None, None]
        if self.window is None:
            return full
        n = len(positions)
        sliding = full if context + n <= self.window else self._sliding(mask, positions, context, drafted)[None, None]
        return {FULL: full, SLIDING: sliding} if self.by_type else sliding

    def by_layer(self, mask: torch.Tensor | None, positions: torch.Tensor, context: int, config: Any,
                 drafted: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        """The same for each layer, as [n, w] over the newest w keys."""
        masks = self.masks(mask, positions, context, drafted)
        if not isinstance(masks, dict):
            masks = dict.fromkeys((FULL, SLIDING), masks)
        masks = {kind: None if wide is None else wide[0, 0] for kind, wide in masks.items()}
        kinds = config.layer_types if self.by_type else [FULL] * config.num_hidden_layers
        return [masks[kind] for kind in kinds]

    def _sliding(self, mask: torch.Tensor | None, positions: torch.Tensor, context: int, drafted: torch.Tensor | None) -> torch.Tensor:
        """float32 [n, context + n]: `mask` with all of the context beside it, less what lies too far back."""
        drafted = positions[:0] if drafted is None else drafted
        context -= len(drafted)
        keys = torch.cat((torch.arange(context, device=positions.device), drafted, positions))
        wide = torch.zeros(len(positions), len(keys), device=positions.device)
        if mask is not None:
            wide[:, context:] = mask
        too_far = positions[:, None] - keys[None] >= self.window
        return wide.masked_fill_(too_far, torch.finfo(torch.float32).min)


def windows_of(config: Any, name: str) -> Windows:
    """The windows of a Hugging Face text config. UserError for attention that trees cannot be verified under."""
    kinds = set(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if getattr(config, "use_bidirectional_attention", False):
        raise UserError(f"{name} attends in both directions, so it cannot decode token by token; give a causal language model.")
    if config.model_type in NOT_SERVED:
        raise UserError(f"{name} ({config.model_type}) attends with {NOT_SERVED[config.model_type]}, which is not built here; "
                        "give a model of another family.")
    if config.model_type in ONE_WINDOW:
        return Windows(window)
    if kinds - {FULL, SLIDING} or ((SLIDING in kinds or window and not kinds) and config.model_type not in BY_LAYER_TYPE):
        known = ", ".join(sorted(kind.removesuffix("_text") for kind in ONE_WINDOW | BY_LAYER_TYPE))
        found = ", ".join(sorted(kinds - {FULL} or {SLIDING}))
        raise UserError(
            f"{name} ({config.model_type}) has layers of {found}, under which trees cannot be verified; "
            f"full attention is served for every model, sliding windows for {known}."
        )
    return Windows(window, by_type=True) if SLIDING in kinds and window else Windows()
