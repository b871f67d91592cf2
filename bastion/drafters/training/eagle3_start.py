"""An EAGLE-3 head before training: its shape, its vocabulary, and weights taken from the target."""

from __future__ import annotations

import torch

from bastion.drafters.eagle3 import Eagle3Model
from bastion.drafters.eagle3_config import Eagle3Config
from bastion.errors import UserError


def head_like(target_config, draft_vocab_size: int, layer_ids: tuple[int, ...]) -> Eagle3Config:
    """One layer of the target's own shape."""
    c = target_config.get_text_config()
    rope = dict(getattr(c, "rope_parameters", None) or {})
    theta = rope.pop("rope_theta", None) or getattr(c, "rope_theta", 10000.0)
    return Eagle3Config(
        hidden_size=c.hidden_size,
        target_hidden_size=c.hidden_size,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        intermediate_size=c.intermediate_size,
        vocab_size=c.vocab_size,
        draft_vocab_size=draft_vocab_size,
        feature_layer_ids=layer_ids,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=rope if rope.get("rope_type", "default") != "default" else None,
    )


def draft_vocabulary(counts: torch.Tensor, size: int) -> torch.Tensor:
    """The ids that occur most, int64 [size], ascending. counts int64 [vocab]: how often each does."""
    return counts.argsort(descending=True, stable=True)[:size].sort().values


@torch.no_grad()
def start_from_target(model: Eagle3Model, target: torch.nn.Module, targets: torch.Tensor, generator: torch.Generator) -> None:
    """Copy what fits, in place: the target's last layer, the head's rows of the ids `targets`, its final norm; `fc` passes the
    last feature through. Queries, keys and values read the hidden half as the target's layer does, and the embedding
    half from small random weights, which the target's layer does not have.

    Raises UserError when the target's layers have another shape; train from random weights then.
    """
    decoder, layer = target.get_decoder(), model.layers[0]
    last, hidden = decoder.layers[-1], model.config.hidden_size
    try:
        for name in ("q_proj", "k_proj", "v_proj"):
            mine, theirs = getattr(layer.self_attn, name).weight, getattr(last.self_attn, name).weight
            mine[:, hidden:] = theirs
            mine[:, :hidden].normal_(std=float(theirs.std()), generator=generator)
        layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
        layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
        layer.input_layernorm.weight.copy_(decoder.layers[0].input_layernorm.weight)
        layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
        model.norm.weight.copy_(decoder.norm.weight)
        model.lm_head.weight.copy_(target.get_output_embeddings().weight[targets])
    except (RuntimeError, AttributeError) as error:
        raise UserError(f"The target's layers cannot be copied ({error}); train with --random-start.") from None
    model.fc.weight.normal_(std=0.2 / model.fc.in_features**0.5, generator=generator)
    model.fc.weight[:, -hidden:] += torch.eye(hidden, device=model.fc.weight.device)
