"""A tiny random EAGLE-3 head: beside the tiny pair's target in memory, and on disk in both layouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from bastion.drafters.eagle3 import Eagle3Model
from bastion.drafters.eagle3_config import Eagle3Config
from bastion.drafters.eagle3_drafter import Eagle3Drafter
from bastion.models.pair import Pair
from tests.tiny_folders import VOCABULARY
from tests.tiny_pair import tiny_pair

DRAFTED = 100
"""Draft vocabulary of the heads on disk."""


def tiny_eagle3_pair(vocab: int = 6, drafted: int | None = None, spread: float = 0.35, seed: int = 3,
                     windows: tuple[int | None, ...] = (None,), **pair) -> Pair:
    """`tiny_pair`'s target with a head. drafted: size of its own vocabulary, the target's highest ids."""
    plain = tiny_pair(vocab=vocab, **pair)
    target, drafted = plain.target, drafted or vocab
    config = Eagle3Config(hidden_size=32, target_hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                          intermediate_size=48, vocab_size=vocab, draft_vocab_size=drafted, feature_layer_ids=(0, 1, 2), windows=windows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Eagle3Model(config).to(target.dtype).eval().requires_grad_(False)
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, spread)
    targets = None if drafted == vocab else torch.arange(vocab - drafted, vocab)
    drafter = Eagle3Drafter(model, target, targets)
    target.watch(drafter.feature_layer_ids)
    return replace(plain, drafter=drafter, drafter_name="tiny-eagle3")


def public_config(**changes) -> dict:
    """The fields of SafeAILab's config.json (`eagle/traineagle3/config.json`), for `tiny_folders.write_target`.

    `eagle_config` is none of them: that target has too few layers for the usual choice.
    """
    return {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 64,
        "initializer_range": 0.02, "intermediate_size": 96, "max_position_embeddings": 256, "model_type": "llama",
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "pad_token_id": 0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.28.1", "use_cache": True,
        "vocab_size": VOCABULARY, "draft_vocab_size": DRAFTED, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    } | changes


def speculators_config(layer: dict | None = None, **changes) -> dict:
    """What speculators 0.9.0 saves."""
    return {
        "architectures": ["Eagle3DraftModel"], "auto_map": {"": "config.Eagle3SpeculatorConfig"}, "draft_vocab_size": DRAFTED,
        "dtype": "float32", "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "embed_requires_grad": False, "fc_norm": False,
        "norm_before_fc": False, "norm_before_residual": False, "norm_output": False, "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0", "target_hidden_size": None, "tie_word_embeddings": False,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "target"}},
        "transformer_layer_config": {
            "attention_bias": False, "head_dim": 16, "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
            "layer_types": ["full_attention"], "mlp_bias": False, "model_type": "llama", "num_attention_heads": 4,
            "num_hidden_layers": 1, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "vocab_size": VOCABULARY,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": None,
        } | (layer or {}),
    } | changes


def write_head(folder: Path, config: dict, seed: int = 1) -> Path:
    """A random head of that config: of the speculators layout with an embedding, of the public one without."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    public = "speculators_model_type" not in config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Eagle3Model(Eagle3Config.from_json(json.dumps(config)))
        tensors = {(name.replace("layers.0.", "midlayer.") if public else name): value.contiguous()
                   for name, value in model.state_dict().items()}
        if not public:
            tensors["embed_tokens.weight"] = torch.randn(VOCABULARY, model.config.hidden_size)
        kept = torch.randperm(VOCABULARY)[: model.config.draft_vocab_size].sort().values
    if model.config.draft_vocab_size < VOCABULARY:
        tensors["d2t"] = kept - torch.arange(len(kept))
        tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, kept, True)
    save_file(tensors, folder / "model.safetensors")
    return folder
