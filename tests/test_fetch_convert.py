"""GGUF to safetensors: names, order of rows, tokenizer, and that transformers reads the result."""

import json

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from safetensors.numpy import load_file

from bastion.errors import UserError
from bastion.models.convert import convert_gguf, tensor_name, undo_rotary_interleaving

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN = 2, 64, 4, 2, 96
HEAD_DIM = HIDDEN // HEADS


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """What the published converter to GGUF does to query and key rows, written head by head."""
    rows = []
    for head in np.split(weight, heads):
        first, second = np.split(head, 2)
        for one, other in zip(first, second, strict=True):
            rows += [one, other]
    return np.stack(rows)


@pytest.fixture
def tiny(tmp_path):
    """A tiny Llama GGUF in Q4_1 and F32, and the weights it holds under Hugging Face names."""
    random = np.random.default_rng(3)
    byte_letters = [chr(b) for b in range(0x21, 0x7F)] + ["Ġ", "Ċ"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters, "he", "ĠĠ", "12"]
    merges = ["h e", "Ġ Ġ", "1 2"]
    shapes = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        for part, shape in {"attn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
                            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_output": (HIDDEN, HIDDEN), "ffn_norm": (HIDDEN,),
                            "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN)}.items():
            shapes[f"blk.{layer}.{part}"] = shape
    file = tmp_path / "tiny.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    expected = {}
    for name, shape in shapes.items():
        # 0 to 15 halves: exact in Q4_1, whose blocks hold 16 levels between their own least and largest value
        weight = random.integers(0, 16, shape).astype(np.float32) / 2
        weight[..., 0::32], weight[..., 1::32] = 0, 7.5
        stem = name.rsplit(".", 1)[-1]
        stored = interleave(weight, HEADS if stem == "attn_q" else KV_HEADS) if stem in ("attn_q", "attn_k") else weight
        if len(shape) == 2:
            writer.add_tensor(f"{name}.weight", quantize(stored, GGMLQuantizationType.Q4_1), raw_dtype=GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(f"{name}.weight", stored)
        expected[tensor_name(f"{name}.weight")] = weight
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file, expected


@pytest.fixture
def converted(tiny, tmp_path):
    folder = tmp_path / "converted"
    folder.mkdir()
    shares = []
    convert_gguf(tiny[0], folder, shares.append)
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0
    return folder


def test_every_weight_arrives_under_its_name_in_its_order(tiny, converted):
    weights = load_file(converted / "model.safetensors")
    assert weights.keys() == tiny[1].keys()
    for name, weight in tiny[1].items():
        assert weights[name].dtype == np.float32
        np.testing.assert_array_equal(weights[name], weight, err_msg=name)


def test_interleaving_is_undone_for_any_number_of_heads():
    for heads, head_dim in ((1, 2), (3, 4), (9, 64)):
        weight = np.arange(heads * head_dim * 5, dtype=np.float32).reshape(heads * head_dim, 5)
        np.testing.assert_array_equal(undo_rotary_interleaving(interleave(weight, heads), heads), weight)


def test_transformers_reads_the_folder_without_missing_or_spare_weights(tiny, converted):
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(converted, output_loading_info=True)
    assert not any(report.values()), report
    config = model.config
    assert (config.model_type, config.num_hidden_layers, config.num_key_value_heads, config.head_dim) == ("llama", LAYERS, KV_HEADS, HEAD_DIM)
    assert config.rope_parameters["rope_theta"] == 5000.0 and config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)


def test_digits_stand_alone_and_template_tokens_are_special(converted):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.tokenize("he  12") == ["he", "ĠĠ", "1", "2"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (1, 2, 2, 0)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "he"}], return_dict=False)
    assert ids == [1, tokenizer.convert_tokens_to_ids("he"), 2]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "he"


def test_another_architecture_is_refused(tmp_path):
    file = tmp_path / "other.gguf"
    writer = GGUFWriter(file, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UserError, match="Only Llama models"):
        convert_gguf(file, tmp_path)


def test_the_default_model_is_what_it_should_be(default_model):
    from transformers import AutoTokenizer

    config = json.loads((default_model / "config.json").read_text())
    assert {name: config[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                                            "intermediate_size", "vocab_size", "eos_token_id", "tie_word_embeddings")} == {
        "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
        "intermediate_size": 1536, "vocab_size": 49152, "eos_token_id": 2, "tie_word_embeddings": True}
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "17 sheep"}], add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids) == ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                                     "<|im_start|>user\n17 sheep<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.tokenize("17 sheep") == ["1", "7", "Ġsheep"]
