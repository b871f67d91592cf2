"""A tiny random target with a byte-level tokenizer, and a tiny random DFlash drafter for it, on disk."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 259  # three special tokens, then the 256 bytes
STOP = 2


def write_target(folder: Path, seed: int = 0) -> Path:
    """A Llama of 4 layers and 256 positions, in float32; chat template and stop token like a real one's."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*specials, *letters])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=specials[1], eos_token=specials[2], pad_token=specials[2], unk_token=specials[0],
        chat_template="{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
                      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ).save_pretrained(folder)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=16, max_position_embeddings=256, tie_word_embeddings=True,
                         bos_token_id=1, eos_token_id=STOP, pad_token_id=STOP, initializer_range=0.3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_drafter(folder: Path, seed: int = 1) -> Path:
    """A DFlash drafter of one layer and block size 6 that fits `write_target`."""
    import torch

    from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel, save_dflash

    folder.mkdir(parents=True, exist_ok=True)
    config = DFlashConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                          intermediate_size=96, vocab_size=VOCABULARY, block_size=6, mask_token_id=0, target_layer_ids=(0, 2),
                          num_target_layers=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        save_dflash(DFlashDraftModel(config), folder, torch.float32)
    return folder
