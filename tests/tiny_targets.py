"""Tiny random targets of several families, and a DFlash drafter that fits each."""

from __future__ import annotations

import torch

from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel
from bastion.drafters.dflash_drafter import DFlashDrafter
from bastion.models.attention import register
from bastion.models.pair import Pair
from bastion.models.quick_modules import quicken
from bastion.models.target import Target

VOCABULARY = 60
WINDOW = 7
COMMON = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=256, initializer_range=0.35, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
TURNS = ["sliding_attention", "full_attention"] * 2
FAMILIES = {
    "qwen3": ("Qwen3", dict(tie_word_embeddings=False)),
    "qwen3-sliding": ("Qwen3", dict(sliding_window=WINDOW, use_sliding_window=True, layer_types=TURNS, tie_word_embeddings=True)),
    "qwen2-sliding": ("Qwen2", dict(sliding_window=WINDOW, use_sliding_window=True, max_window_layers=2)),
    "llama": ("Llama", dict(tie_word_embeddings=False)),
    "mistral": ("Mistral", dict(sliding_window=WINDOW)),
    "mistral-full": ("Mistral", dict(sliding_window=None)),
    "gemma3": ("Gemma3", dict(sliding_window=WINDOW, sliding_window_pattern=2, query_pre_attn_scalar=16, final_logit_softcapping=9.0)),
    "gemma3-tied": ("Gemma3", dict(sliding_window=WINDOW, sliding_window_pattern=2, query_pre_attn_scalar=16)),
    "gemma2": ("Gemma2", dict(sliding_window=WINDOW, layer_types=TURNS, query_pre_attn_scalar=16, attn_logit_softcapping=5.0)),
}


def library_model(family: str, dtype: torch.dtype, attention: str = "eager", seed: int = 0):
    """The transformers model, random norms included; the same weights for every `attention`."""
    import transformers

    name, fields = FAMILIES[family]
    tied = fields.get("tie_word_embeddings", family == "gemma3-tied")
    config = getattr(transformers, name + ("TextConfig" if name == "Gemma3" else "Config"))(
        **(COMMON | fields | {"tie_word_embeddings": tied}), attn_implementation=attention
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, name + "ForCausalLM")(config)
        for key, weight in model.named_parameters():
            if "norm" in key:
                # a tied Gemma repeats its last token unless its layers outweigh the scaled embedding
                weight.data.normal_(6.0 if "post_" in key and tied else 0.0 if "Gemma" in name else 1.0, 0.3)
    return model.to(dtype).eval().requires_grad_(False)


def family_pair(family: str, dtype: torch.dtype, seed: int = 0, feature_layers: tuple[int, ...] = (0, 2)) -> Pair:
    target = Target(quicken(library_model(family, dtype, register(), seed)), family)
    config = DFlashConfig(32, 1, 4, 2, 8, 48, VOCABULARY, 5, 0, feature_layers, 4, layer_types=("sliding_attention",), sliding_window=6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        model = DFlashDraftModel(config).to(dtype).eval().requires_grad_(False)
    drafter = DFlashDrafter(model, target, (1.0,) * 4)
    target.watch(drafter.feature_layer_ids)
    return Pair(family, target, None, drafter, frozenset(), drafter_name="tiny")
