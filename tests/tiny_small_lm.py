"""A tiny random language model that drafts for the tiny pair's target: in memory, and on disk with its tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from bastion.drafters.small_lm import SmallLmDrafter
from bastion.models.attention import register
from bastion.models.pair import Pair
from bastion.models.quick_modules import quicken
from bastion.models.target import Target
from tests.tiny_folders import VOCABULARY
from tests.tiny_pair import tiny_pair


def tiny_small_lm_pair(vocab: int = 6, small_vocab: int | None = None, layers: int = 2, window: int | None = None, positions: int = 64,
                       small_positions: int | None = None, seed: int = 3, spread: float = 0.35, **pair) -> Pair:
    """`tiny_pair`'s target with a Llama half as wide, or with a Mistral whose layers see `window` positions."""
    plain = tiny_pair(vocab=vocab, positions=positions, **pair)
    settings = dict(
        vocab_size=small_vocab or vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=small_positions or positions, initializer_range=spread,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None, attn_implementation=register(),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**settings)) if window is None else \
            MistralForCausalLM(MistralConfig(**settings, sliding_window=window))
        small = Target(quicken(model.to(plain.target.dtype).eval().requires_grad_(False)), "small")
    return replace(plain, drafter=SmallLmDrafter(small, plain.target), drafter_name="small")


def write_small_lm(folder: Path, target: Path, vocab: int = VOCABULARY, seed: int = 5) -> Path:
    """A Llama of 2 narrow layers for `tiny_folders.write_target`, with that folder's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=8, max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((target / name).read_bytes())
    return folder
