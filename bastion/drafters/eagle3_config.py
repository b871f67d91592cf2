"""The shape of an EAGLE-3 head, read from the `config.json` of either published layout.

The public layout is what SafeAILab's EAGLE writes (a flat Llama config with `draft_vocab_size`, one
layer under the weight names `midlayer.*`). The `speculators` layout is vLLM's: geometry under
`transformer_layer_config`, flags beside it, layers under `layers.N.*`. `auto_map`, and any Python
file beside the config, is never looked at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from bastion.errors import UserError

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_EAGLE_CONFIG = {"use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
                 "use_mtp_layernorm": False, "next_layer_regular": True}
"""Switches of ModelOpt's `eagle_config` and the value each has in the architecture built here."""


@dataclass(frozen=True)
class Eagle3Config:
    """`feature_layer_ids` counts the target's layers from 0, the feature being the *output* of that layer;
    None stands for the three that EAGLE-3 reads when none are named (`feature_layers`).

    `windows` has one entry per layer: how many positions it sees, itself counted, None for all.
    norm_before_residual: the residual is the normed hidden. norm_before_fc: one norm over all features
    ahead of `fc`; fc_norm: one for each. norm_output: what goes into the next position is normed.
    """

    hidden_size: int
    target_hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int | None
    draft_vocab_size: int
    windows: tuple[int | None, ...] = (None,)
    feature_layer_ids: tuple[int, ...] | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @property
    def num_hidden_layers(self) -> int:
        return len(self.windows)

    @property
    def features(self) -> int:
        """Target layers that are read."""
        return 3 if self.feature_layer_ids is None else len(self.feature_layer_ids)

    def feature_layers(self, target_layers: int) -> tuple[int, ...]:
        """Layers read from a target of so many. EAGLE-3's own choice is the inputs of layers 2, n // 2 and
        n - 3 (SafeAILab/EAGLE cb7e084, `modeling_llama_kv.py`), which are outputs of the layers before."""
        if self.feature_layer_ids is not None:
            return self.feature_layer_ids
        return 1, target_layers // 2 - 1, target_layers - 4

    @classmethod
    def from_json(cls, text: str) -> Eagle3Config:
        """Read a `config.json` of either layout; UserError when it is no EAGLE-3 head that can be run here."""
        try:
            raw = json.loads(text)
            return _speculators(raw) if "speculators_model_type" in raw else _public(raw)
        except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise UserError(f"This config.json does not describe an EAGLE-3 head ({error!r}); give a folder in SafeAILab's or "
                            "in vLLM's speculators layout.") from None


def is_eagle3(raw: dict) -> bool:
    """Whether a parsed `config.json` is an EAGLE-3 head of either layout."""
    kind = raw.get("speculators_model_type")
    if kind is not None or "dflash_config" in raw:
        return kind == "eagle3"
    names = raw.get("architectures")
    return "draft_vocab_size" in raw or any("Eagle3" in str(name) for name in (names if isinstance(names, list) else ()))


def _public(raw: dict) -> Eagle3Config:
    """SafeAILab's layout (field names: `eagle/traineagle3/config.json`; what is read: `eagle/model/configs.py`).

    `eagle_config` and the norm flags are not in it; trainers that write this layout add them. Layer ids
    there count the layers whose outputs are read (ModelOpt's default is 1, n / 2 - 1, n - 4).
    """
    extra = raw.get("eagle_config") or {}
    for name, expected in _EAGLE_CONFIG.items():
        if extra.get(name, expected) not in (expected, None):
            raise UserError(f"The EAGLE-3 head has {name} set to {extra[name]!r} in its eagle_config, which is not supported; "
                            "give another head.")
    if int(extra.get("parallel_draft_step") or 1) != 1:
        raise UserError("The EAGLE-3 head drafts several positions at once (parallel_draft_step), which is not supported; "
                        "give another head.")
    if int(raw.get("num_hidden_layers") or 1) != 1:
        raise UserError(f"The EAGLE-3 head has {raw['num_hidden_layers']} layers in a layout that holds one; give another head.")
    layer_ids = extra.get("eagle_aux_hidden_state_layer_ids")
    if raw.get("eagle_aux_hidden_state_layer_ids"):
        layer_ids = [int(index) - 1 for index in raw["eagle_aux_hidden_state_layer_ids"]]  # counted as speculators does
    return _build(raw, raw, layer_ids, windows=(None,), qk_norm=False)


def _speculators(raw: dict) -> Eagle3Config:
    """vLLM's `speculators` layout (0.9.0). Its layer ids are those of Hugging Face's `hidden_states`: the
    input of that layer, so the output of the one before (`models/utils.py`, resolve_target_layer_ids)."""
    kind = raw["speculators_model_type"]
    if kind != "eagle3":
        raise UserError(f"This is a speculators folder of the type {kind!r} and no EAGLE-3 head; give another folder.")
    layer = raw["transformer_layer_config"]
    if layer.get("model_type", "llama") not in ("llama", "qwen3"):
        raise UserError(f"The EAGLE-3 head is made of {layer['model_type']!r} layers; only llama and qwen3 are supported.")
    kinds = layer.get("layer_types") or ["full_attention"] * int(layer.get("num_hidden_layers") or 1)
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown:
        raise UserError(f"The EAGLE-3 head has layers of the type {unknown[0]!r}; only full and sliding attention are supported.")
    windows = tuple(int(layer["sliding_window"]) if kind == "sliding_attention" else None for kind in kinds)
    layer_ids = raw.get("eagle_aux_hidden_state_layer_ids")
    if layer_ids is not None:
        layer_ids = [int(index) - 1 for index in layer_ids]
    return _build(raw, layer, layer_ids, windows, qk_norm=layer.get("model_type") == "qwen3")


def _build(raw: dict, layer: dict, layer_ids, windows: tuple[int | None, ...], qk_norm: bool) -> Eagle3Config:
    """`raw` holds what is the head's own, `layer` the geometry of its layers."""
    if layer.get("hidden_act", "silu") != "silu":
        raise UserError(f"The EAGLE-3 head uses the activation {layer['hidden_act']!r}; only silu is supported.")
    rope = dict(layer.get("rope_parameters") or layer.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or layer.get("rope_theta") or 10000.0
    scaled = rope.get("rope_type", rope.get("type", "default")) not in ("default", None)
    heads, hidden = int(layer["num_attention_heads"]), int(layer["hidden_size"])
    vocab = layer.get("vocab_size")
    return Eagle3Config(
        hidden_size=hidden,
        target_hidden_size=int(raw.get("target_hidden_size") or hidden),
        num_attention_heads=heads,
        num_key_value_heads=int(layer.get("num_key_value_heads") or heads),
        head_dim=int(layer.get("head_dim") or hidden // heads),
        intermediate_size=int(layer["intermediate_size"]),
        vocab_size=None if vocab is None else int(vocab),
        draft_vocab_size=int(raw.get("draft_vocab_size") or vocab),
        windows=windows,
        feature_layer_ids=tuple(int(index) for index in layer_ids) if layer_ids else None,
        rms_norm_eps=float(layer.get("rms_norm_eps") or 1e-6),
        rope_theta=float(theta),
        rope_scaling=rope if scaled else None,
        attention_bias=bool(layer.get("attention_bias") or False),
        mlp_bias=bool(layer.get("mlp_bias") or False),
        qk_norm=qk_norm,
        **{flag: bool(raw.get(flag) or False) for flag in FLAGS},
    )
