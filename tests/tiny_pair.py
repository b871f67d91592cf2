"""A tiny random pair in memory: small enough to enumerate everything it can say."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel
from bastion.drafters.dflash_drafter import DFlashDrafter
from bastion.latency import DevicePeaks, ModelShape, make_calibration
from bastion.models.attention import register
from bastion.models.pair import Pair
from bastion.models.quick_modules import quicken
from bastion.models.target import Target


def tiny_pair(
    vocab: int = 6,
    block: int = 4,
    positions: int = 64,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    stops: frozenset[int] = frozenset(),
    spread: float = 0.35,
) -> Pair:
    """Llama of 3 layers beside a DFlash drafter of 1 layer. `spread`: weights' deviation, so that choices vary."""
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=positions, initializer_range=spread,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        attn_implementation=register(),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = quicken(LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False))
        target = Target(model, "tiny")
        drafter_config = DFlashConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            intermediate_size=48, vocab_size=vocab, block_size=block, mask_token_id=0, target_layer_ids=(0, 2),
            num_target_layers=3,
        )
        draft_model = DFlashDraftModel(drafter_config).to(dtype).eval().requires_grad_(False)
    drafter = DFlashDrafter(draft_model, target, (1.0,) * (block - 1))
    target.watch(drafter.feature_layer_ids)
    return Pair("tiny", target, None, drafter, stops, drafter_name="tiny-drafter")


def tiny_calibration(pair: Pair, step: float = 0.05):
    """Verify time 1 + step * nodes, draft 1 and other 0.1: where best-first stops varies from step to step."""
    probes = [(n, c, 1.0 + step * n) for n in (1, 2, 4, 8, 16) for c in (4, 16, 32)]
    return make_calibration(
        shape=ModelShape.from_config(pair.target.config), peaks=DevicePeaks(1e9, 1e9), peaks_source="measured",
        probes=probes, robust=True, bytes_per_value=8, device_key=pair.device_name, target=pair.target.name,
        drafter=pair.drafter_name, dtype=pair.dtype_name, attention=pair.attention, draft_seconds=1.0, other_seconds=0.1,
    )
