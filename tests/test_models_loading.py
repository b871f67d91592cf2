"""Loading pairs from folders: what fits loads, and everything else is one clear sentence."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from bastion import decode, load_pair
from bastion.errors import UserError
from bastion.models import PRESETS
from bastion.models.device import pick_device
from tests.tiny_folders import STOP, VOCABULARY, write_drafter, write_target


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return write_target(folder / "target"), write_drafter(folder / "drafter")


@pytest.fixture(scope="module")
def pair(folders):
    return load_pair(*folders, device="cpu", dtype="float32")


@pytest.fixture
def drafter(folders, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(folders[1], tmp_path / "drafter")


def change(folder, **fields):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for name, value in fields.items():
        if name in config["dflash_config"]:
            config["dflash_config"][name] = value
        else:
            config[name] = value
    file.write_text(json.dumps(config))


def refused(words, *arguments, **options):
    with pytest.raises(UserError) as caught:
        load_pair(*arguments, **{"device": "cpu", "dtype": "float32", **options})
    message = str(caught.value)
    assert words in message, message
    assert "\n" not in message and "Traceback" not in message and len(message) < 500
    return message


def test_what_a_loaded_pair_knows(pair):
    assert pair.name and pair.device.type == "cpu" and pair.dtype_name == "float32"
    assert pair.stop_token_ids == {STOP}
    assert pair.target.vocab_size == VOCABULARY and pair.target.position_limit == 256
    assert pair.drafter.depth == 5 and pair.drafter.feature_layer_ids == (0, 2)


def test_a_loaded_pair_decodes_the_same_with_and_without_its_drafter(pair, folders):
    alone = load_pair(folders[0], device="cpu", dtype="float32")
    texts = []
    for chosen, method in ((alone, "ar"), (pair, "ar"), (pair, "dflash"), (pair, "ddtree:12")):
        steps = decode(chosen, "abc", method, max_new_tokens=24, stop_token_ids=())
        texts.append([token for step in steps for token in step.emitted])
    assert texts.count(texts[0]) == 4
    with pytest.raises(UserError, match="needs a drafter"):
        decode(alone, "abc", "dflash")


def test_greedy_ids_are_those_of_the_librarys_generate(pair, folders):
    from transformers import AutoModelForCausalLM

    ids = pair.tokenizer.encode_prompt("hello")
    plain = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
    expected = plain.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    steps = decode(pair, "hello", "ddtree:12", max_new_tokens=20, stop_token_ids=())
    assert [token for step in steps for token in step.emitted] == expected[0, len(ids) :].tolist()


def test_places_without_a_model(tmp_path):
    refused("no folder", str(tmp_path / "absent"))
    refused("no preset", "not a model")
    refused("cannot be loaded", str(tmp_path))


def test_a_hub_name_without_a_network(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = refused("cannot be fetched", "nobody/none-such-model")
    assert "folder" in message


def test_pickled_weights_are_not_read(folders, tmp_path):
    folder = shutil.copytree(folders[0], tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    refused("cannot be loaded", folder)


def test_code_in_a_model_folder_is_not_run(folders, tmp_path):
    folder = shutil.copytree(folders[0], tmp_path / "coded")
    config = json.loads((folder / "config.json").read_text())
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    refused("cannot be loaded", folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"hidden_size": 48}, "hidden size is 48"),
        ({"vocab_size": 300}, "vocabulary size is 300"),
        ({"num_target_layers": 5}, "number of target layers is 5"),
        ({"target_layer_ids": [0, 4]}, "reads target layers [0, 4]"),
        ({"target_layer_ids": []}, "reads target layers []"),
        ({"mask_token_id": 259}, "mask token 259"),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}, "do not match its config.json"),
        ({"intermediate_size": 32}, "do not match its config.json"),
        ({"block_size": 1}, "block_size"),
        ({"block_size": "many"}, "does not describe a DFlash drafter"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
    ],
)
def test_a_drafter_that_does_not_fit(folders, drafter, fields, words):
    change(drafter, **fields)
    refused(words, folders[0], drafter)


def test_a_damaged_drafter_folder(folders, drafter):
    weights = drafter / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    refused("cannot be read", folders[0], drafter)
    weights.unlink()
    torch.save({}, drafter / "pytorch_model.bin")
    refused("only safetensors", folders[0], drafter)
    (drafter / "config.json").write_text("{}")
    refused("no drafter of a known kind", folders[0], drafter)
    (drafter / "config.json").write_text("{")
    refused("not valid JSON", folders[0], drafter)
    (drafter / "config.json").unlink()
    refused("no config.json", folders[0], drafter)


def test_depth_temperatures_divide_the_drafters_logits(folders, drafter):
    temperatures = [1.0, 1.5, 2.0, 3.0, 0.5]
    (drafter / "growth.json").write_text(json.dumps({"depth_temperatures": temperatures}))
    warm, plain = (load_pair(folders[0], folder, device="cpu", dtype="float32") for folder in (drafter, folders[1]))
    for one in (warm, plain):
        one.first = next(iter(list(decode(one, "abc", "ddtree:200", max_new_tokens=2))[1:])).trace
    for depth, temperature in enumerate(temperatures):
        order = plain.first.marginal_token_ids[depth].argsort()
        expected = torch.log_softmax(torch.tensor(plain.first.marginal_log_probs[depth]).double() / temperature, -1)
        found = torch.tensor(warm.first.marginal_log_probs[depth]).double()
        found = found - found.logsumexp(-1)  # over the tokens kept
        assert warm.first.marginal_token_ids[depth].tolist() == plain.first.marginal_token_ids[depth].tolist()
        torch.testing.assert_close(found[order], expected[order], atol=2e-4, rtol=0)


def test_a_drafter_stored_in_bfloat16_may_run_in_it_beside_a_float32_target(folders, tmp_path, monkeypatch):
    """Chosen by measuring; the text is the target's either way."""
    from safetensors.torch import load_file, save_file

    half = shutil.copytree(folders[1], tmp_path / "half")
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(half / "model.safetensors").items()}
    save_file(weights, half / "model.safetensors")
    texts = []
    for quicker, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr("bastion.drafters.dflash_drafter.cpu_prefers_bfloat16", lambda quicker=quicker: quicker)
        pair = load_pair(folders[0], half, device="cpu", dtype="float32")
        assert pair.drafter.dtype == expected and pair.dtype == torch.float32
        assert load_pair(*folders, device="cpu", dtype="float32").drafter.dtype == torch.float32
        for method in ("ar", "dflash", "ddtree:12"):
            steps = list(decode(pair, "abc", method, max_new_tokens=20, stop_token_ids=()))
            texts.append([token for step in steps for token in step.emitted])
        first = steps[1].trace.marginal_log_probs
        if expected == torch.bfloat16:
            rough = first
    assert texts.count(texts[0]) == 6
    torch.testing.assert_close(torch.tensor(rough[0, :5]), torch.tensor(first[0, :5]), atol=0.1, rtol=0)


@pytest.mark.parametrize("text", ["[]", "{", '{"depth_temperatures": [1, 1]}', '{"depth_temperatures": [1, 1, 0, 1, 1]}'])
def test_bad_depth_temperatures(folders, drafter, text):
    (drafter / "growth.json").write_text(text)
    refused("depth_temperatures", folders[0], drafter)


def test_devices_and_number_types(folders):
    refused("no device", folders[0], device="tpu9")
    refused("no number type", folders[0], dtype="int3")
    assert pick_device("cpu").type == "cpu"


def test_presets_name_published_pairs():
    assert list(PRESETS) == ["smollm2-135m", "qwen3-4b", "qwen3-8b", "llama-3.1-8b"]
    assert all(preset.target and preset.drafter and preset.summary for preset in PRESETS.values())


def test_a_tokenizer_that_is_not_there(folders, tmp_path):
    folder = shutil.copytree(folders[0], tmp_path / "bare", ignore=lambda *_: ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
    alone = load_pair(folder, device="cpu", dtype="float32")
    assert alone.tokenizer is None
    with pytest.raises(UserError, match="no tokenizer"):
        decode(alone, "text", "ar")
    assert len(list(decode(alone, [5, 6], "ar", max_new_tokens=3, stop_token_ids=()))) == 3
    refused("tokenizer", folder, tokenizer=tmp_path)
