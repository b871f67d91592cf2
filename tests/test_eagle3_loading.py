"""Reading EAGLE-3 folders of both layouts: what fits loads, and everything else is one clear sentence."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bastion import decode, load_pair
from bastion.drafters.eagle3_config import Eagle3Config, is_eagle3
from bastion.errors import UserError
from tests.golden import golden
from tests.tiny_eagle3 import DRAFTED, public_config, speculators_config, write_head
from tests.tiny_folders import VOCABULARY, write_drafter, write_target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("eagle3") / "target")


def load(target, head):
    return load_pair(target, head, device="cpu", dtype="float32")


def refused(words: str, target, head) -> None:
    with pytest.raises(UserError) as caught:
        load(target, head)
    message = str(caught.value)
    assert words in message, message
    assert "\n" not in message and len(message) < 600


def ids_of(pair, method: str) -> list[int]:
    return [token for step in decode(pair, "hello", method, max_new_tokens=24, stop_token_ids=()) for token in step.emitted]


LAYOUTS = {
    "public": public_config(),
    "public, whole vocabulary": public_config(draft_vocab_size=VOCABULARY),
    "public, with norms": public_config(norm_before_residual=True, norm_before_fc=True, fc_norm=True, norm_output=True),
    "public, scaled positions": public_config(rope_scaling={"type": "linear", "factor": 2.0}, attention_bias=True),
    "speculators": speculators_config(),
    "speculators, its defaults": speculators_config({"layer_types": ["sliding_attention"], "sliding_window": 8}, norm_before_residual=True,
                                                    norm_before_fc=True, norm_output=True),
    "speculators, two qwen3 layers": speculators_config({"model_type": "qwen3", "num_hidden_layers": 2, "mlp_bias": True,
                                                         "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4},
                                                        fc_norm=True, eagle_aux_hidden_state_layer_ids=[1, 4]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_decodes_to_the_targets_own_ids(name, target, tmp_path):
    head = write_head(tmp_path / "head", LAYOUTS[name])
    (head / "config.py").write_text("raise RuntimeError('code of a model folder was run')")
    pair = load(target, head)
    assert pair.drafter.kind == "eagle3" and pair.drafter.depth == 8
    assert pair.drafter.feature_layer_ids == ((0, 3) if "two" in name else (0, 1, 2))
    assert ids_of(pair, "eagle3:12") == ids_of(pair, "ar")


@torch.inference_mode()
def test_both_layouts_of_one_head_draft_the_same(target, tmp_path):
    """By the converter's map: midlayer.X is layers.0.X, all else keeps its name; without an embedding the target's is used."""
    public = write_head(tmp_path / "public", public_config(rope_theta=5e5))
    tensors = {name.replace("midlayer.", "layers.0."): value for name, value in load_file(public / "model.safetensors").items()}
    embedding = load(target, public).target.embedding.weight.clone()
    trees = []
    for number, more in enumerate(({}, {"embed_tokens.weight": embedding})):
        folder = write_head(tmp_path / f"converted{number}", speculators_config(
            {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, architectures=["Eagle3Speculator"]))
        save_file(tensors | more, folder / "model.safetensors")
        trees.append([step.token_ids.tolist() for step in decode(load(target, folder), "hello", "eagle3:12", max_new_tokens=12)])
    expected = [step.token_ids.tolist() for step in decode(load(target, public), "hello", "eagle3:12", max_new_tokens=12)]
    assert trees == [expected, expected]


def test_weights_in_several_files_and_under_a_prefix_load(target, tmp_path):
    head = write_head(tmp_path / "head", public_config())
    expected = ids_of(load(target, head), "eagle3:5")
    tensors = load_file(head / "model.safetensors")
    (head / "model.safetensors").unlink()
    names = sorted(tensors)
    save_file({f"model.{name}": tensors[name] for name in names[::2]}, head / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in names[1::2]} | {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(8)},
              head / "model-00002-of-00002.safetensors")
    pair = load(target, head)
    assert ids_of(pair, "eagle3:5") == expected


def test_a_head_without_its_own_output_head_shares_the_targets(target, tmp_path):
    head = write_head(tmp_path / "head", public_config(draft_vocab_size=VOCABULARY))
    tensors = load_file(head / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, head / "model.safetensors")
    pair = load(target, head)
    x = torch.randn(1, 2, 64)
    torch.testing.assert_close(pair.drafter.model.logits(x), pair.target.head(pair.drafter.model.norm(x)))
    assert ids_of(pair, "eagle3:12") == ids_of(pair, "ar")


def test_heads_stored_in_bfloat16_run_beside_any_target(target, tmp_path, monkeypatch):
    import bastion.drafters.dflash_drafter as dflash_module

    head = write_head(tmp_path / "head", public_config(draft_vocab_size=VOCABULARY))
    tensors = load_file(head / "model.safetensors")
    for name, missing in (("own", ()), ("shared", ("lm_head.weight",))):
        folder = shutil.copytree(head, tmp_path / name)
        save_file({key: value.to(torch.bfloat16) for key, value in tensors.items() if key not in missing}, folder / "model.safetensors")
        for quick in (False, True):  # whether this CPU is quicker in it
            monkeypatch.setattr(dflash_module, "cpu_prefers_bfloat16", lambda quick=quick: quick)
            pair = load(target, folder)
            assert pair.drafter.dtype == (torch.bfloat16 if quick else torch.float32)
            assert ids_of(pair, "eagle3:12") == ids_of(pair, "ar")
        pair = load_pair(target, folder, device="cpu", dtype="bfloat16")
        assert pair.drafter.dtype == torch.bfloat16 and len(ids_of(pair, "eagle3:12")) == 24


def test_drafted_tokens_are_those_of_the_map(target, tmp_path):
    head = write_head(tmp_path / "head", public_config())
    kept = np.flatnonzero(load_file(head / "model.safetensors")["t2d"].numpy())
    pair = load(target, head)
    assert pair.drafter.targets.tolist() == kept.tolist() and len(kept) == DRAFTED
    for step in list(decode(pair, "hello", "eagle3:20", max_new_tokens=12))[1:]:
        assert np.isin(step.token_ids[1:], kept).all()


def test_the_recorded_configs_say_what_they_are():
    shared = golden("drafters/A_eagle3/head_random")
    config = Eagle3Config.from_json((shared / "config.json").read_text())
    assert (config.rope_theta, config.rms_norm_eps, config.windows, config.features) == (10000.0, 1e-5, (None,), 3)
    assert config.feature_layers(7) == (1, 2, 3) and config.feature_layers(32) == (1, 15, 28)  # inputs of 2, 16 and 29
    config = Eagle3Config.from_json((golden("drafters/B_speculators/eagle3_llama_v090_defaults") / "config.json").read_text())
    assert (config.rope_theta, config.windows, config.feature_layer_ids) == (1e6, (5,), (1, 2, 3))
    assert config.norm_before_residual and config.norm_before_fc and config.norm_output and not config.fc_norm


def test_which_configs_are_eagle3():
    assert is_eagle3(public_config()) and is_eagle3(speculators_config())
    assert is_eagle3({"architectures": ["LlamaForCausalLMEagle3"]})
    assert not is_eagle3({"architectures": ["LlamaForCausalLM"]}) and not is_eagle3({"architectures": None})
    assert not is_eagle3(public_config(dflash_config={})) and not is_eagle3(speculators_config(speculators_model_type="dflash"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "the activation 'gelu'"),
        ({"num_hidden_layers": 2}, "2 layers in a layout that holds one"),
        ({"vocab_size": 300}, "its vocabulary size is 300 and the target's is 259"),
        ({"hidden_size": 32}, "its features' width is 32 and the target's is 64"),
        ({"target_hidden_size": 48}, "its features' width is 48"),
        ({"draft_vocab_size": 400}, "drafts from 400 tokens"),
        ({"draft_vocab_size": 90}, "do not match its config.json (lm_head.weight)"),
        ({"intermediate_size": 128}, "do not match its config.json"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "only linear and llama3"),
        ({"eagle_config": None}, "of a target of 4 layers the usual three are not different"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state set to False"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm set to True"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}}, "reads the outputs of layers [1, 2, 4]"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, "reads the target's embeddings as one of its features"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}, "do not match its config.json (fc.weight)"),
        ({"num_attention_heads": None}, "does not describe an EAGLE-3 head"),
        ({"num_attention_heads": 0}, "does not describe an EAGLE-3 head"),
        ({"eagle_config": [1]}, "does not describe an EAGLE-3 head"),
    ],
)
def test_public_configs_that_do_not_fit(changes, words, target, tmp_path):
    head = write_head(tmp_path / "head", public_config())
    config = public_config(**changes)
    (head / "config.json").write_text(json.dumps(config))
    if config["draft_vocab_size"] < DRAFTED:  # the map is looked at first
        tensors = load_file(head / "model.safetensors")
        short = tensors["d2t"][: config["draft_vocab_size"]].clone()
        save_file({name: value for name, value in tensors.items() if name != "t2d"} | {"d2t": short}, head / "model.safetensors")
    refused(words, target, head)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (speculators_config(speculators_model_type="eagle"), "no drafter of a known kind"),
        (speculators_config({"model_type": "gemma3_text"}), "made of 'gemma3_text' layers"),
        (speculators_config({"layer_types": ["chunked_attention"]}), "of the type 'chunked_attention'"),
        (speculators_config({"layer_types": ["sliding_attention"], "sliding_window": None}), "does not describe an EAGLE-3 head"),
        (speculators_config({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}), "only linear and llama3"),
        (speculators_config({"hidden_act": "relu"}), "the activation 'relu'"),
        (speculators_config(transformer_layer_config=None), "does not describe an EAGLE-3 head"),
        (speculators_config(eagle_aux_hidden_state_layer_ids=[1, 2, 5]), "reads the outputs of layers [0, 1, 4]"),
    ],
)
def test_speculators_configs_that_do_not_fit(config, words, target, tmp_path):
    head = write_head(tmp_path / "head", speculators_config())
    (head / "config.json").write_text(json.dumps(config))
    refused(words, target, head)


def spoilt(tmp_path, config=None, without=(), **tensors):
    head = write_head(tmp_path / "head", config or public_config())
    found = {name: value for name, value in load_file(head / "model.safetensors").items() if name not in without}
    save_file(found | tensors, head / "model.safetensors")
    return head


def test_vocabulary_maps_that_cannot_be(target, tmp_path):
    full = torch.zeros(DRAFTED, dtype=torch.int64)
    for number, (tensors, without, words) in enumerate([
        ({}, ("d2t",), "has no map d2t"),
        ({"d2t": full + 200}, (), "does not lead to 100 different tokens"),
        ({"d2t": full - 1}, (), "does not lead to 100 different tokens"),
        ({"d2t": -torch.arange(DRAFTED)}, (), "does not lead to 100 different tokens"),
        ({"d2t": full[:50]}, (), "map d2t has the shape [50]"),
        ({"d2t": full}, (), "contradict each other"),
        ({"t2d": torch.ones(7, dtype=torch.bool)}, (), "contradict each other"),
    ]):
        refused(words, target, spoilt(tmp_path / str(number), None, without, **tensors))


def test_weights_that_do_not_fit(target, tmp_path):
    for number, (tensors, without, words) in enumerate([
        ({}, ("midlayer.mlp.up_proj.weight",), "(layers.0.mlp.up_proj.weight)"),
        ({}, ("lm_head.weight",), "(lm_head.weight)"),
        ({"something.weight": torch.ones(2)}, (), "(something.weight)"),
        ({"fc.weight": torch.ones(64, 128)}, (), "(fc.weight)"),
        ({"embed_tokens.weight": torch.ones(200, 64)}, (), "embedding has the shape [200, 64]"),
    ]):
        refused(words, target, spoilt(tmp_path / str(number), None, without, **tensors))
    narrow = write_head(tmp_path / "narrow", public_config(hidden_size=32, target_hidden_size=64, head_dim=16))
    refused("brings no embedding of its own", target, narrow)


def test_a_narrower_head_with_its_own_embedding_fits(target, tmp_path):
    head = spoilt(tmp_path, public_config(hidden_size=32, target_hidden_size=64, head_dim=16),
                  **{"embed_tokens.weight": torch.randn(VOCABULARY, 32)})
    pair = load(target, head)
    assert ids_of(pair, "eagle3:12") == ids_of(pair, "ar")


def test_pickled_weights_are_refused_with_the_way_out(target, tmp_path):
    head = write_head(tmp_path / "head", public_config())
    expected = ids_of(load(target, head), "eagle3:5")
    tensors = load_file(head / "model.safetensors")
    torch.save(tensors, head / "pytorch_model.bin")
    (head / "model.safetensors").unlink()
    with pytest.raises(UserError, match="converted there once with: python -c") as caught:
        load(target, head)
    import subprocess
    import sys

    command = str(caught.value).partition("with: python -c ")[2]
    subprocess.run(f"{sys.executable} -c {command}", shell=True, cwd=head, check=True)
    assert ids_of(load(target, head), "eagle3:5") == expected


def test_damaged_weights(target, tmp_path):
    head = write_head(tmp_path / "head", public_config())
    file = head / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    refused("cannot be read", target, head)
    shutil.rmtree(head)
    refused("config.json", target, write_head_without_config(head))


def write_head_without_config(folder):
    folder.mkdir()
    return folder


def test_other_drafters_still_load_as_what_they_are(target, tmp_path):
    assert load(target, write_drafter(tmp_path / "dflash")).drafter.kind == "dflash"
