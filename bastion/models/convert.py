"""Turn a Llama-architecture GGUF file into a folder that transformers loads in a second.

transformers can read GGUF by itself, but takes fifteen seconds at every start, needs accelerate,
and loses the digit splitting of the tokenizer (its pre-tokenizer name, `smollm`, is not looked
at). This reads the file once with the `gguf` package and writes what `save_pretrained` would:
config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json and
chat_template.jinja.

The weights are kept in float32: a Q4_1 block is `scale * q + minimum` with float16 scale and
minimum, and bfloat16's eight bits of precision cannot hold that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bastion.errors import UserError

CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL: a special token, never produced by the byte-pair merges

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert_gguf(gguf_file: Path, folder: Path, progress: Callable[[float], None] | None = None) -> None:
    """Write `gguf_file` into the existing empty `folder`; `progress` gets fractions from 0 to 1.

    Raises UserError when the file is not a Llama model with a byte-level BPE tokenizer.
    """
    from gguf import GGUFReader

    report = progress or (lambda _fraction: None)
    report(0.0)
    reader = GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kind = (fields.get("general.architecture"), fields.get("tokenizer.ggml.model"))
    if kind != ("llama", "gpt2"):
        raise UserError(f"Only Llama models with a byte-level BPE tokenizer can be converted, and this GGUF says {kind}.")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = _config(fields, tied)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(config))
    _write_tokenizer(fields, config, folder)
    report(0.3)  # reading the vocabulary takes about as long as a third of the work
    _write_weights(reader.tensors, config, folder / "model.safetensors", lambda done: report(0.3 + 0.7 * done))


def tensor_name(gguf_name: str) -> str:
    """Name of a GGUF tensor in the Hugging Face Llama layout (`blk.0.attn_q.weight` and so on)."""
    stem, _, suffix = gguf_name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"
    return f"{OTHER_NAMES[stem]}.{suffix}"


def undo_rotary_interleaving(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection, from GGUF's order to Hugging Face's.

    `weight` is [heads * head_dim, hidden]. GGUF stores each head's rotary pairs side by side
    (0, half, 1, half + 1, ...); Hugging Face rotates the first half against the second.
    """
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _config(fields: dict, tied: bool) -> dict:
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": fields.get("llama.rope.dimension_count", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_theta": fields.get("llama.rope.freq_base", 10000.0), "rope_type": "default"},
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id", fields["tokenizer.ggml.eos_token_id"]),
        "dtype": "float32",
    }


def _generation_config(config: dict) -> dict:
    return {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _write_tokenizer(fields: dict, config: dict, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    split = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if fields.get("tokenizer.ggml.pre") == "smollm":
        split.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in zip(tokens, kinds) if kind == CONTROL_TOKEN]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "pad_token_id"}
    _write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "unk_token": tokens[fields.get("tokenizer.ggml.unknown_token_id", 0)],
        **{name: tokens[config[key]] for name, key in named.items()},
    })
    if "tokenizer.chat_template" in fields:
        (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")


def _write_weights(tensors: list, config: dict, file: Path, report: Callable[[float], None]) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    weights = {}
    for index, tensor in enumerate(tensors):
        name = tensor_name(tensor.name)
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if name.endswith("q_proj.weight"):
            weight = undo_rotary_interleaving(weight, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            weight = undo_rotary_interleaving(weight, config["num_key_value_heads"])
        weights[name] = np.ascontiguousarray(weight)
        report(0.8 * (index + 1) / len(tensors))
    save_file(weights, file, metadata={"format": "pt"})
    report(1.0)


def _write_json(file: Path, value: dict) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
