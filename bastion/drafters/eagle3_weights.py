"""Writing an EAGLE-3 head as SafeAILab's layout has it (`eagle/model/cnets.py` in cb7e084; golden facts in its README)."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from bastion.drafters.eagle3 import Eagle3Model
from bastion.drafters.eagle3_config import Eagle3Config


def save_eagle3(model: Eagle3Model, targets: torch.Tensor, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write `config.json` and `model.safetensors` into an existing folder; the embedding stays the target's.

    targets int64 [draft vocabulary]: the target's ids of the head's own. On disk `d2t` holds what to add to the head's ids.
    """
    from safetensors.torch import save_file

    named = {name.replace("layers.0.", "midlayer."): value for name, value in model.state_dict().items()}
    tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in named.items()}
    targets = targets.cpu()
    if len(targets) < model.config.vocab_size:
        kept = torch.zeros(model.config.vocab_size, dtype=torch.bool)
        kept[targets] = True
        tensors |= {"d2t": targets - torch.arange(len(targets)), "t2d": kept}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(public_config(model.config) + "\n", encoding="utf-8")


def public_config(c: Eagle3Config) -> str:
    """The `config.json` of the public layout. Feature layers are named as ModelOpt does: those whose outputs are read."""
    return json.dumps({
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "rope_scaling": c.rope_scaling,
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(c.feature_layer_ids)},
    }, indent=2)
