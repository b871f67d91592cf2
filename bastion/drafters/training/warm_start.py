"""A drafter that starts from the target's own last layers.

The layers are shaped alike, so they can be copied; what the target lacks is set so that the
first pass is sensible: `fc` passes the last feature through, and the query and key norms, which
Llama does not have, take the mean norm of the heads that they will rescale.
"""

from __future__ import annotations

import torch

from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel
from bastion.errors import UserError


def config_like(
    target_config, layers: int, block_size: int, mask_token_id: int, layer_ids: tuple[int, ...]
) -> DFlashConfig:
    """A drafter of the target's own width."""
    c = target_config.get_text_config()
    rope = dict(getattr(c, "rope_parameters", None) or {})
    theta = rope.pop("rope_theta", getattr(c, "rope_theta", 10000.0))
    return DFlashConfig(
        hidden_size=c.hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        intermediate_size=c.intermediate_size,
        vocab_size=c.vocab_size,
        block_size=block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=layer_ids,
        num_target_layers=c.num_hidden_layers,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=rope if rope.get("rope_type", "default") != "default" else None,
        max_position_embeddings=c.max_position_embeddings,
    )


@torch.no_grad()
def warm_start(drafter: DFlashDraftModel, target: torch.nn.Module, sample_ids: torch.Tensor) -> None:
    """Copy the target's last layers into the drafter, in place. sample_ids: int64 [1, t], any real text.

    Raises UserError when the target's layers have another shape; train from random weights then.
    """
    layers = target.get_decoder().layers
    last = layers[len(layers) - len(drafter.layers) :]
    norms: dict[tuple[int, str], float] = {}

    def measure(index, name):
        def hook(_module, _inputs, output):
            heads = output.float().unflatten(-1, (-1, drafter.config.head_dim))
            norms[index, name] = heads.pow(2).mean(-1).sqrt().mean().item()

        return hook

    handles = [
        getattr(layer.self_attn, name).register_forward_hook(measure(i, name))
        for i, layer in enumerate(last)
        for name in ("q_proj", "k_proj")
    ]
    try:
        target(input_ids=sample_ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    try:
        for index, (mine, theirs) in enumerate(zip(drafter.layers, last, strict=True)):
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                getattr(mine.self_attn, name).weight.copy_(getattr(theirs.self_attn, name).weight)
            for name in ("gate_proj", "up_proj", "down_proj"):
                getattr(mine.mlp, name).weight.copy_(getattr(theirs.mlp, name).weight)
            mine.input_layernorm.weight.copy_(theirs.input_layernorm.weight)
            mine.post_attention_layernorm.weight.copy_(theirs.post_attention_layernorm.weight)
            mine.self_attn.q_norm.weight.fill_(norms[index, "q_proj"])
            mine.self_attn.k_norm.weight.fill_(norms[index, "k_proj"])
    except (RuntimeError, AttributeError) as error:
        raise UserError(f"The target's layers cannot be copied ({error}); train with --random-start.") from None
    hidden = drafter.config.hidden_size
    drafter.fc.weight.normal_(std=0.2 / drafter.fc.in_features**0.5)
    drafter.fc.weight[:, -hidden:] += torch.eye(hidden, device=drafter.fc.weight.device)
    drafter.hidden_norm.weight.copy_(torch.stack([layer.input_layernorm.weight for layer in last]).float().mean(0))
    drafter.norm.weight.copy_(target.get_decoder().norm.weight)
