"""The sizes of a target that decide what a forward costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bastion.errors import UserError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer with grouped-query attention and a gated feed-forward part.

    layers; hidden: width; heads, kv_heads: query and key-value heads; head_dim; ffn: inner width
    of the feed-forward part; vocab; tied: embedding and head share one matrix.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"A model's {name} must be a whole number of 1 or more, not {value!r}.")

    @classmethod
    def from_config(cls, config: Any) -> ModelShape:
        """From a Hugging Face config, an object or a dict (config.json).

        Takes the nested text_config of multimodal models; head_dim defaults to hidden / heads and
        kv_heads to heads. Raises UserError naming the field that is missing.
        """
        if (nested := _get(config, "text_config")) is not None:
            config = nested
        hidden, heads = _need(config, "hidden_size"), _need(config, "num_attention_heads")
        return cls(
            layers=_need(config, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=_get(config, "num_key_value_heads") or heads,
            head_dim=_get(config, "head_dim") or hidden // heads,
            ffn=_need(config, "intermediate_size"),
            vocab=_need(config, "vocab_size"),
            tied=bool(_get(config, "tie_word_embeddings")),
        )

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' matrices (norms and biases are left out, as published)."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def head_weights(self) -> int:
        """Weights of the output head (and as many of the embedding)."""
        return self.hidden * self.vocab


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _need(config: Any, name: str) -> Any:
    value = _get(config, name)
    if value is None:
        raise UserError(f"The model's config has no {name}: choose a decoder-only causal language model.")
    return value
