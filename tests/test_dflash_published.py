"""Folders with the key names and config fields that z-lab publishes, against a plain computation written here.

Where the facts come from. Key names: the library's own converter, `golden/drafters/B_speculators/
converter_runs.json`, `source_keys`. Fields: z-lab/dflash `dflash/model.py` (commit 10129599dffb) and its
`tests/fixtures/dflash2-config.json` for `rope_parameters`, `block_size` inside `dflash_config`, `is_causal` and
`layer_types` with `sliding_window`; published config.json files of the same family for `rope_scaling` of kind
yarn and llama3 (the targets' own kinds) and for `mask_token_id` and `target_layer_ids` at the top level. Every
published layer norms its queries and keys, since the code knows no other; a folder without the norms is read too.
Drafters bring neither embedding nor head, so tied and untied is the target's affair: Qwen3-4B ties, Qwen3-8B and
Llama-3.1-8B do not.
"""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bastion import decode, load_pair
from bastion.drafters.dflash import DFlashConfig, rotary
from bastion.errors import UserError

TOLERANCE = 2e-5
HIDDEN, HEADS, KEYS, SIZE, FFN, VOCAB, BLOCK, LAYERS = 32, 4, 2, 8, 48, 300, 6, 2
FEATURES = [1, 3]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
TURNS = ["sliding_attention", "full_attention"]
VARIANTS = {
    "qwen3": {},
    "llama-3.1": {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "block_size": 5, "rms_norm_eps": 1e-5},
    "yarn": {"rope_scaling": YARN},
    "sliding": {"layer_types": TURNS, "sliding_window": 4, "use_sliding_window": True},
    "sliding-not-causal": {"layer_types": TURNS, "sliding_window": 4, "use_sliding_window": True, "is_causal": False},
    "causal": {"is_causal": True},
    "one-window-short": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 2, "use_sliding_window": True},
    "new-fields": {"rope_scaling": None, "rope_theta": None, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "block_size": None,
                   "dflash_config": {"block_size": 6, "mask_token_id": 299, "target_layer_ids": FEATURES, "output_multiplier": 0.5,
                                     "final_logit_softcapping": 3.0, "input_embedding_scale": 2.0}},
    "top-level": {"dflash_config": None, "mask_token_id": 299, "target_layer_ids": FEATURES},
    "without-norms": {},
    "biased": {"attention_bias": True},
}


def published_config(**fields) -> dict:
    """The fields of a published config.json; None takes one out."""
    config = {
        "architectures": ["DFlashDraftModel"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": BLOCK, "bos_token_id": 151643,
        "dflash_config": {"mask_token_id": 299, "target_layer_ids": FEATURES}, "dtype": "bfloat16", "eos_token_id": 151645,
        "head_dim": SIZE, "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": FFN,
        "layer_types": ["full_attention"] * LAYERS, "max_position_embeddings": 256, "max_window_layers": LAYERS, "model_type": "qwen3",
        "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": KEYS, "num_target_layers": 5,
        "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
        "transformers_version": "4.57.1", "use_cache": True, "use_sliding_window": False, "vocab_size": VOCAB,
    } | fields
    return {name: value for name, value in config.items() if value is not None or name in ("rope_scaling", "sliding_window")}


def published_tensors(config: dict, normed: bool = True) -> dict[str, torch.Tensor]:
    """Random weights under the published names."""
    random = torch.Generator().manual_seed(3)
    shapes = {"fc.weight": (HIDDEN, len(FEATURES) * HIDDEN), "hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        own = {"self_attn.q_proj": (HEADS * SIZE, HIDDEN), "self_attn.k_proj": (KEYS * SIZE, HIDDEN),
               "self_attn.v_proj": (KEYS * SIZE, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * SIZE), "mlp.gate_proj": (FFN, HIDDEN),
               "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN), "input_layernorm": (HIDDEN,),
               "post_attention_layernorm": (HIDDEN,)}
        if normed:
            own |= {"self_attn.q_norm": (SIZE,), "self_attn.k_norm": (SIZE,)}
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in own.items()}
        if config["attention_bias"]:
            shapes |= {f"layers.{layer}.{name}.bias": (shape[0],) for name, shape in own.items() if name.startswith("self_attn") and len(shape) == 2}
    return {name: (1.0 if len(shape) == 1 and "bias" not in name else 0.0) + 0.2 * torch.randn(shape, generator=random)
            for name, shape in shapes.items()}


def write(folder, variant):
    config = published_config(**VARIANTS[variant])
    tensors = published_tensors(config, normed=variant != "without-norms")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder, config, tensors


@pytest.fixture(scope="module", params=["Llama", "Qwen3"], ids=["llama-untied", "qwen3-tied"])
def target(request, tmp_path_factory):
    import transformers

    rope = {"rope_theta": 500000.0, **LLAMA3} if request.param == "Llama" else {"rope_theta": 1e6, "rope_type": "default"}
    config = getattr(transformers, request.param + "Config")(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, max_position_embeddings=256, tie_word_embeddings=request.param == "Qwen3", initializer_range=0.3,
        rope_parameters=rope, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, request.param + "ForCausalLM")(config)
    folder = tmp_path_factory.mktemp("target")
    model.save_pretrained(folder)
    return folder


# ---- the plain computation: float64, one position and one head at a time -----------------------

def plain_angles(config: dict) -> tuple[np.ndarray, float]:
    """Inverse frequencies and the factor on sines and cosines, from the papers' formulas."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or config["rope_theta"]
    frequencies = theta ** (-np.arange(0, SIZE, 2) / SIZE)
    kind = scaling.get("rope_type", "default")
    if kind == "yarn":  # arXiv 2309.00071, section 3.2 and 3.4
        length, factor = scaling["original_max_position_embeddings"], scaling["factor"]
        turning = lambda turns: SIZE * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))  # noqa: E731
        low, high = max(math.floor(turning(scaling["beta_fast"])), 0), min(math.ceil(turning(scaling["beta_slow"])), SIZE - 1)
        ramp = np.clip((np.arange(SIZE // 2) - low) / (high - low or 0.001), 0, 1)
        return frequencies / factor * ramp + frequencies * (1 - ramp), 0.1 * math.log(factor) + 1
    if kind == "llama3":
        length = scaling["original_max_position_embeddings"]
        out = []
        for frequency in frequencies:
            wave = 2 * math.pi / frequency
            if wave < length / scaling["high_freq_factor"]:
                out.append(frequency)
            elif wave > length / scaling["low_freq_factor"]:
                out.append(frequency / scaling["factor"])
            else:
                smooth = (length / wave - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
                out.append((1 - smooth) * frequency / scaling["factor"] + smooth * frequency)
        return np.array(out), 1.0
    return frequencies, 1.0


def plain_forward(config, tensors, block, features, anchor):
    """Hidden states [B, h] of a block whose anchor stands behind the context of `features` [anchor, f]."""
    weights = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    eps = config["rms_norm_eps"]
    norm = lambda x, name: x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weights.get(name, 1.0)  # noqa: E731
    frequencies, factor = plain_angles(config)

    def turned(x, position):
        angle, half = position * frequencies, SIZE // 2
        cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
        return np.concatenate((x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin))

    def projected(x, name):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    context = norm(features @ weights["fc.weight"].T, "hidden_norm.weight")
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        sliding = config["layer_types"][layer] == "sliding_attention"
        causal = config.get("is_causal", sliding)
        normed = norm(block, at + "input_layernorm.weight")
        rows = np.concatenate((context, normed))
        query, key, value = (projected(x, f"{at}self_attn.{name}_proj").reshape(len(x), -1, SIZE)
                             for x, name in ((normed, "q"), (rows, "k"), (rows, "v")))
        if at + "self_attn.q_norm.weight" in weights:
            query, key = norm(query, at + "self_attn.q_norm.weight"), norm(key, at + "self_attn.k_norm.weight")
        mixed = np.zeros((len(block), HEADS, SIZE))
        for slot in range(len(block)):
            place = anchor + slot
            seen = [p for p in range(len(rows)) if (not causal or p <= place) and (not sliding or abs(place - p) < config["sliding_window"])]
            for head in range(HEADS):
                own = turned(query[slot, head], place)
                scores = np.array([own @ turned(key[p, head // 2], p) for p in seen]) / math.sqrt(SIZE)
                shares = np.exp(scores - scores.max())
                mixed[slot, head] = shares @ value[seen, head // 2] / shares.sum()
        block = block + projected(mixed.reshape(len(block), -1), at + "self_attn.o_proj")
        normed = norm(block, at + "post_attention_layernorm.weight")
        gate = projected(normed, at + "mlp.gate_proj")
        block = block + projected(gate / (1 + np.exp(-gate)) * projected(normed, at + "mlp.up_proj"), at + "mlp.down_proj")
    return norm(block, "norm.weight")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_published_folder_loads_and_drafts_as_computed_plainly(variant, target, tmp_path):
    folder, config, tensors = write(tmp_path / "drafter", variant)
    pair = load_pair(target, folder, device="cpu", dtype="float32")
    drafter, size = pair.drafter, config.get("block_size") or config["dflash_config"]["block_size"]
    assert drafter.depth == size - 1 and drafter.feature_layer_ids == (1, 3)
    draft = config.get("dflash_config") or {}
    embedding = pair.target.embedding.weight.double().numpy()
    head = pair.target.model.get_output_embeddings()
    head = (head.plain if hasattr(head, "plain") else head.weight).double().numpy()
    random = torch.Generator().manual_seed(8)
    features = torch.randn(1, 13, len(FEATURES) * HIDDEN, generator=random)
    session, given = drafter.start(64), 0
    for context, root in ((6, 17), (7, 18), (13, 40)):  # a cache that grows by 6, 1 and 6
        ids, log_probs = session.draft(features[:, given:context], root, 4)
        given = context
        block = embedding[[root] + [299] * (size - 1)] * draft.get("input_embedding_scale", 1.0)
        hidden = plain_forward(config, tensors, block, features[0, :context].double().numpy(), context)
        logits = torch.from_numpy(hidden[1:] @ head.T) * draft.get("output_multiplier", 1.0)
        if (cap := draft.get("final_logit_softcapping")) is not None:
            logits = torch.tanh(logits / cap) * cap
        expected = logits.log_softmax(-1).topk(4)
        np.testing.assert_allclose(log_probs, expected.values, atol=TOLERANCE)
        assert ids.tolist() == expected.indices.tolist()


@pytest.mark.parametrize("variant", ["yarn", "sliding", "new-fields"])
def test_decoding_with_it_emits_the_targets_ids(variant, target, tmp_path):
    pair = load_pair(target, write(tmp_path / "drafter", variant)[0], device="cpu", dtype="float32")
    texts = [[token for step in decode(pair, [5, 9, 40], method, max_new_tokens=24, stop_token_ids=()) for token in step.emitted]
             for method in ("ar", "dflash", "ddtree:9")]
    assert texts[0] == texts[1] == texts[2]


def test_what_is_written_is_read_back():
    for variant in VARIANTS:
        config = DFlashConfig.from_json(json.dumps(published_config(**VARIANTS[variant])))
        assert DFlashConfig.from_json(config.to_json()) == config


def test_fused_queries_keys_and_values_are_read_as_the_converter_reads_them(target, tmp_path):
    """Rows apart, gates and feature norms left out, the first columns of a wider fc."""
    folder, config, tensors = write(tmp_path / "drafter", "qwen3")
    plain = load_pair(target, folder, device="cpu", dtype="float32").drafter.model.state_dict()
    for layer in range(LAYERS):
        at = f"layers.{layer}.self_attn."
        tensors[at + "qkv_proj.weight"] = torch.cat([tensors.pop(f"{at}{part}_proj.weight") for part in "qkv"])
        tensors[at + "g_proj.weight"] = torch.ones(4, HIDDEN)
    tensors["aux_hidden_norms.0.weight"] = torch.ones(HIDDEN)
    tensors["fc.weight"] = torch.cat((tensors["fc.weight"], torch.ones(HIDDEN, HIDDEN)), dim=1)
    save_file(tensors, folder / "model.safetensors")
    fused = load_pair(target, folder, device="cpu", dtype="float32").drafter.model.state_dict()
    assert plain.keys() == fused.keys() and len(plain) > 20
    for name, value in plain.items():
        if torch.is_tensor(value) and not value.is_mkldnn:
            assert torch.equal(value, fused[name]), name


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash 2"),
        ({"dflash_config": {"mask_token_id": 299, "target_layer_ids": FEATURES, "selector_rank": 8}}, "DFlash 2"),
        ({"layer_types": ["linear_attention"] * 2}, "linear_attention"),
        ({"layer_types": TURNS}, "no sliding_window"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 3}, "types of 1 layers"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "incomplete"),
        ({"dflash_config": {"mask_token_id": 299}}, "does not describe"),
    ],
)
def test_what_is_not_built_is_said(fields, words):
    with pytest.raises(UserError, match=words) as caught:
        rotary(DFlashConfig.from_json(json.dumps(published_config(**fields))))
    assert "\n" not in str(caught.value)
