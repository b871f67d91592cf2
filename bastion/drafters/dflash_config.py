"""The shape of a DFlash drafter, and the published `config.json` it is read from.

Fields and their meaning are those of z-lab/dflash, `dflash/model.py` (commit 10129599dffb):
`dflash_config` holds `target_layer_ids`, `mask_token_id` and, in newer folders, `block_size`,
`input_embedding_scale`, `output_multiplier` and `final_logit_softcapping`; each may also stand at the
top level. `layer_types` and `sliding_window` make a layer look back over so many positions only, and
such a layer is causal inside the block unless `is_causal` says otherwise. Rotary scaling is whatever
Qwen3's config takes: `rope_scaling` beside `rope_theta`, or both in `rope_parameters`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bastion.errors import UserError

FULL, SLIDING = "full_attention", "sliding_attention"
ROPE_KINDS = ("linear", "llama3", "yarn")
SECOND_GENERATION = ("selector_rank", "conv_kernel_size")
"""Fields of `dflash_config` that only DFlash 2 has: convolutions in the layers and a candidate selector."""


@dataclass(frozen=True)
class DFlashConfig:
    """The shape of a drafter. `from_json` reads the published `config.json`, `to_json` writes it.

    `target_layer_ids` counts the target's layers from 0; the feature is the *output* of that
    layer, which Hugging Face calls `hidden_states[id + 1]`; -1 is the embeddings.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    """0 where the folder does not say."""
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    attention_bias: bool = False
    max_position_embeddings: int = 32768
    layer_types: tuple[str, ...] = ()
    """One per layer; empty when all attend fully."""
    sliding_window: int | None = None
    causal: bool | None = None
    """Whether a block position sees no later one. None: in sliding layers only."""
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    qk_norm: bool = True
    """Whether queries and keys are normed; z-lab's own folders always are."""
    window_from_anchor: bool = False
    """Windows reach back from the anchor for the whole block, not from each position (speculators)."""
    sample_from_anchor: bool = False
    """Slot i predicts position anchor + i + 1 and not anchor + i (speculators)."""
    target_hidden_size: int | None = None
    """Width of one target layer's feature where it is not `hidden_size`."""
    draft_vocab_size: int | None = None
    """Rows of the drafter's own head where it speaks fewer tokens than the target."""

    @classmethod
    def from_json(cls, text: str) -> DFlashConfig:
        """Read a `config.json`; UserError when it is not a DFlash drafter this module can run."""
        try:
            raw = json.loads(text)
            draft = {**raw, **(raw.get("dflash_config") or {})}
            softcap = float(draft.get("final_logit_softcapping") or 0)
            config = cls(
                **geometry(raw),
                block_size=int(raw.get("block_size") or draft["block_size"]),
                mask_token_id=int(draft["mask_token_id"]),
                target_layer_ids=tuple(int(i) for i in draft["target_layer_ids"]),
                num_target_layers=int(raw.get("num_target_layers") or 0),
                causal=None if raw.get("is_causal") is None else bool(raw["is_causal"]),
                embedding_scale=float(draft.get("input_embedding_scale") or 1.0),
                logit_scale=float(draft.get("output_multiplier") or 1.0),
                logit_softcap=softcap if softcap > 0 else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise not_described(error) from None
        if "DFlash2DraftModel" in (raw.get("architectures") or []) or any(name in draft for name in SECOND_GENERATION):
            raise UserError("This is a DFlash 2 drafter, whose convolutions and candidate selector are not built here; "
                            "give a DFlash drafter of the first kind.")
        return config.checked(raw)

    def checked(self, geometry: dict[str, Any]) -> DFlashConfig:
        """Itself; UserError when the drafter asks for something that is not built. geometry: the parsed layers' config."""
        if geometry.get("hidden_act", "silu") != "silu":
            raise UserError(f"The drafter uses the activation {geometry['hidden_act']!r}; only silu is supported.")
        unknown = sorted(set(self.layer_types) - {FULL, SLIDING})
        if unknown:
            raise UserError(f"The drafter has layers of type {unknown}; only full and sliding attention are supported.")
        if self.layer_types and len(self.layer_types) != self.num_hidden_layers:
            raise UserError(f"The drafter names the types of {len(self.layer_types)} layers and has {self.num_hidden_layers}; "
                            "mend layer_types in its config.json.")
        if SLIDING in self.layer_types and (self.sliding_window is None or self.sliding_window < 1):
            raise UserError("The drafter has layers of type sliding_attention and no sliding_window; mend its config.json.")
        if self.depth < 1:
            raise UserError("The drafter's block_size is below 2, so it can draft nothing; give another drafter.")
        return self

    def to_json(self) -> str:
        """The published `config.json`: `from_json(c.to_json()) == c`, and public loaders read it.

        What only folders of speculators have (`window_from_anchor` and the fields below it) has no place in it.
        """
        types = list(self.layer_types or (FULL,) * self.num_hidden_layers)
        draft = {"mask_token_id": self.mask_token_id, "target_layer_ids": list(self.target_layer_ids)}
        optional = (("input_embedding_scale", self.embedding_scale, 1.0), ("output_multiplier", self.logit_scale, 1.0),
                    ("final_logit_softcapping", self.logit_softcap, None))
        draft |= {name: value for name, value, usual in optional if value != usual}
        return json.dumps(
            {
                "architectures": ["DFlashDraftModel"],
                "model_type": "qwen3",
                "attention_bias": self.attention_bias,
                "attention_dropout": 0.0,
                "block_size": self.block_size,
                "dflash_config": draft,
                "head_dim": self.head_dim,
                "hidden_act": "silu",
                "hidden_size": self.hidden_size,
                "initializer_range": 0.02,
                "intermediate_size": self.intermediate_size,
                **({} if self.causal is None else {"is_causal": self.causal}),
                "layer_types": types,
                "max_position_embeddings": self.max_position_embeddings,
                "num_attention_heads": self.num_attention_heads,
                "num_hidden_layers": self.num_hidden_layers,
                "num_key_value_heads": self.num_key_value_heads,
                "num_target_layers": self.num_target_layers,
                "rms_norm_eps": self.rms_norm_eps,
                "rope_scaling": self.rope_scaling,
                "rope_theta": self.rope_theta,
                "sliding_window": self.sliding_window,
                "tie_word_embeddings": False,
                "use_cache": True,
                "use_sliding_window": SLIDING in types,
                "vocab_size": self.vocab_size,
            },
            indent=2,
        )

    @property
    def depth(self) -> int:
        """Drafted positions of one pass: B - 1, or B where the anchor's slot drafts too."""
        return self.block_size - 1 + self.sample_from_anchor

    @property
    def feature_size(self) -> int:
        """Width of the features: one target layer's output after another."""
        return len(self.target_layer_ids) * (self.target_hidden_size or self.hidden_size)

    def attends(self, layer: int) -> tuple[bool, int | None]:
        """(causal inside the block, how many positions back it sees or None for all) of one layer."""
        sliding = bool(self.layer_types) and self.layer_types[layer] == SLIDING
        return sliding if self.causal is None else self.causal, self.sliding_window if sliding else None


def not_described(error: Exception) -> UserError:
    return UserError(
        f"This config.json does not describe a DFlash drafter ({error!r}); give a folder in the published DFlash layout."
    )


def geometry(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of `DFlashConfig` that a Qwen3 config holds. Raises KeyError, TypeError or ValueError."""
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0
    scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
    heads = int(raw["num_attention_heads"])
    types = tuple(str(kind) for kind in raw.get("layer_types") or ())
    window = raw.get("sliding_window") if SLIDING in types else None
    return {
        "hidden_size": int(raw["hidden_size"]),
        "num_hidden_layers": int(raw["num_hidden_layers"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(raw.get("num_key_value_heads") or heads),
        "head_dim": int(raw.get("head_dim") or raw["hidden_size"] // heads),
        "intermediate_size": int(raw["intermediate_size"]),
        "vocab_size": int(raw["vocab_size"]),
        "rms_norm_eps": float(raw.get("rms_norm_eps", 1e-6)),
        "rope_theta": float(theta),
        "rope_scaling": rope if scaled else None,
        "attention_bias": bool(raw.get("attention_bias", False)),
        "max_position_embeddings": int(raw.get("max_position_embeddings", 32768)),
        "layer_types": types if set(types) != {FULL} else (),
        "sliding_window": None if window is None else int(window),
    }


def build_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> list[int]:
    """The target layers a drafter reads by default: evenly spaced from 1 to `num_target_layers - 3`.

    One draft layer reads the middle. Rounds half to even, as the published code does.
    """
    if num_draft_layers == 1:
        return [num_target_layers // 2]
    first, last = 1, num_target_layers - 3
    step = (last - first) / (num_draft_layers - 1)
    return [round(first + i * step) for i in range(num_draft_layers)]


def rotary_inverse_frequencies(config: DFlashConfig) -> torch.Tensor:
    """`rotary` for callers that have no place for its factor: inverse frequencies alone, of all kinds but YaRN."""
    return rotary(config, ROPE_KINDS[:2])[0]


def rotary(config: DFlashConfig, kinds: Sequence[str] = ROPE_KINDS) -> tuple[torch.Tensor, float]:
    """Inverse frequencies, float32 [head_dim / 2], and the factor on sines and cosines, which only YaRN has.

    Scaled kinds are computed by transformers, as in the published code, whose drafters rotate by Qwen3's class.
    """
    scaling = config.rope_scaling
    if scaling is None:
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu") / config.head_dim
        return 1.0 / config.rope_theta**exponents, 1.0
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind not in kinds:
        known = f"{', '.join(kinds[:-1])} and {kinds[-1]}"
        raise UserError(f"The drafter scales its rotary positions by {kind!r}; only {known} are supported.")
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {**scaling, "rope_type": kind, "rope_theta": config.rope_theta}
    parameters.pop("type", None)
    try:
        with torch.device("cpu"):
            library = Qwen3Config(
                hidden_size=config.hidden_size, num_attention_heads=config.num_attention_heads, head_dim=config.head_dim,
                max_position_embeddings=getattr(config, "max_position_embeddings", None) or 32768, rope_parameters=parameters,
            )
            frequencies, factor = ROPE_INIT_FUNCTIONS[kind](library, torch.device("cpu"))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"The drafter's {kind} rotary scaling is incomplete ({error}); mend rope_scaling in its config.json.") from None
    return frequencies.float(), float(factor)
