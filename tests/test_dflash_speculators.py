"""DFlash folders that vLLM's `speculators` library wrote, against the forwards it recorded."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bastion import decode, load_pair
from bastion.drafters.dflash import DFlashConfig
from bastion.drafters.dflash_speculators import config_from_speculators
from bastion.errors import UserError
from bastion.models.registry import load_drafter
from tests.golden import golden

TOLERANCE = 2e-5
FOLDERS = ["dflash_pruned_full_attn", "dflash_fullvocab_sliding"]


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    """The shape of the verifier with its embedding and head; its layers, which the records do not need, are random."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=7, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=2048, tie_word_embeddings=False, initializer_range=0.2,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    model.load_state_dict(load_file(golden("drafters/tiny_qwen3_ends.safetensors")), strict=False)
    folder = tmp_path_factory.mktemp("verifier")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pairs(verifier):
    return {name: load_pair(verifier, golden(f"drafters/B_speculators/{name}"), device="cpu", dtype="float32") for name in FOLDERS}


@pytest.fixture(scope="module")
def records():
    return {name: load_file(golden(f"drafters/B_speculators/{name}_forward.safetensors")) for name in FOLDERS}


@pytest.fixture
def folder(tmp_path):
    """A copy of the pruned drafter to spoil."""
    found = golden("drafters/B_speculators/dflash_pruned_full_attn")
    return shutil.copytree(found, tmp_path / "drafter", copy_function=shutil.copyfile)


def change(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def blocks(record, size):
    """(rows of the record, anchor) of every recorded block."""
    anchors = record["out_anchored_block_indices"][::size].tolist()
    return [(slice(index * size, (index + 1) * size), anchor) for index, anchor in enumerate(anchors)]


@torch.no_grad()
@pytest.mark.parametrize("name", FOLDERS)
def test_hidden_states_and_logits_of_every_block(name, pairs, records):
    drafter, record = pairs[name].drafter, records[name]
    config, ids = drafter.model.config, record["input_ids"][0]
    found = blocks(record, config.block_size)
    assert len(found) == 3
    for rows, anchor in found:
        block = torch.full((config.block_size,), config.mask_token_id)
        block[0] = ids[anchor]
        positions = torch.arange(anchor + config.block_size)[None]
        hidden = drafter.model(drafter.embed(block)[None], record["hidden_states"][:, :anchor], positions)
        torch.testing.assert_close(hidden[0], record["out_hidden"][0, rows], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(drafter.logits(hidden[0]), record["out_logits"][0, rows], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("pieces", [1, 3])
def test_drafted_ids_are_the_targets_and_sorted_by_the_recorded_logits(name, pieces, pairs, records):
    """In one draft, and with a cache that grew over several: slots 1 to B - 1, mapped to the target's vocabulary."""
    drafter, record = pairs[name].drafter, records[name]
    summary = json.loads(golden("drafters/B_speculators/summary_dflash.json").read_text())[name]
    offsets = load_file(golden(f"drafters/B_speculators/{name}") / "model.safetensors").get("d2t", torch.zeros(300, dtype=torch.int64))
    for rows, anchor in blocks(record, drafter.model.config.block_size):
        session = drafter.start(64)
        for features in record["hidden_states"][:, :anchor].tensor_split(pieces, dim=1):
            ids, log_probs = session.draft(features, int(record["input_ids"][0, anchor]), 5)
        expected = record["out_logits"][0, rows][1:].log_softmax(-1).topk(5)
        np.testing.assert_allclose(log_probs, expected.values, atol=TOLERANCE)
        assert ids[:, 0].tolist() == summary["argmax_target"][rows][1:]
        assert ids.tolist() == (expected.indices + offsets[expected.indices]).tolist()


def test_a_window_is_counted_from_the_anchor(pairs, records):
    """Context further back than the window changes nothing in the sliding layer; the recorded folder has one."""
    config = pairs["dflash_fullvocab_sliding"].drafter.model.config
    assert config.attends(0) == (True, 5) and config.attends(1) == (False, None) and config.window_from_anchor
    assert config.target_layer_ids == (1, 2, 3)  # 2, 3, 4 of hidden_states
    pruned = pairs["dflash_pruned_full_attn"].drafter.model.config
    assert pruned.draft_vocab_size == 120 and pruned.vocab_size == 300 and not pruned.layer_types


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("method", ["dflash", "ddtree:12"])
def test_decoding_with_it_emits_the_targets_own_ids(name, method, pairs):
    prompt, texts = [5, 17, 200, 41, 8], []
    for chosen in ("ar", method):
        steps = decode(pairs[name], prompt, chosen, max_new_tokens=24, stop_token_ids=())
        texts.append([token for step in steps for token in step.emitted])
    assert texts[0] == texts[1]


def test_code_and_a_verifiers_name_in_the_folder_are_not_looked_at(folder, verifier):
    (folder / "config.py").write_text("raise SystemExit('run')\n")
    change(folder, auto_map={"": "config.Evil"}, speculators_config={"verifier": {"name_or_path": "no/where"}})
    assert load_pair(verifier, folder, device="cpu", dtype="float32").drafter.depth == 3


def test_an_embedding_and_a_head_of_its_own_are_used(folder, verifier, pairs):
    """Older versions of the library save both."""
    weights = load_file(folder / "model.safetensors")
    ends = load_file(golden("drafters/tiny_qwen3_ends.safetensors"))
    save_file(weights | {"embed_tokens.weight": 2 * ends["model.embed_tokens.weight"]}, folder / "model.safetensors")
    own = load_pair(verifier, folder, device="cpu", dtype="float32").drafter
    ids = torch.tensor([3, 4])
    assert torch.equal(own.embed(ids), 2 * pairs["dflash_pruned_full_attn"].drafter.embed(ids))


def test_the_anchors_slot_may_draft_too(folder, verifier, records):
    """`sample_from_anchor`: slot i predicts anchor + i + 1, so a block of 4 drafts 4 tokens."""
    change(folder, sample_from_anchor=True)
    drafter = load_pair(verifier, folder, device="cpu", dtype="float32").drafter
    record = records["dflash_pruned_full_attn"]
    rows, anchor = blocks(record, 4)[1]
    assert drafter.depth == 4
    _, log_probs = drafter.start(64).draft(record["hidden_states"][:, :anchor], int(record["input_ids"][0, anchor]), 3)
    np.testing.assert_allclose(log_probs, record["out_logits"][0, rows].log_softmax(-1).topk(3).values, atol=TOLERANCE)


def test_non_causal_windows(folder):
    sliding = json.loads((golden("drafters/B_speculators/dflash_fullvocab_sliding") / "config.json").read_text())
    config = config_from_speculators(json.dumps(sliding | {"sliding_window_non_causal": True}))
    assert config.attends(0) == (False, 5) and config.attends(1) == (False, None)


def test_features_may_start_at_the_embeddings(folder, verifier):
    """hidden_states[0] is the embeddings; the feature of id 0 is what the first layer reads."""
    change(folder, aux_hidden_state_layer_ids=[0, 1, 7])
    pair = load_pair(verifier, folder, device="cpu", dtype="float32")
    assert pair.drafter.feature_layer_ids == (-1, 0, 6)
    ids = [7, 8, 9, 10]
    output = pair.target.prefill(ids, pair.target.new_cache(8))
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32)
    with torch.inference_mode():
        states = plain(torch.tensor([ids]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(output.features, torch.cat([states[0], states[1], states[7]], -1), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda weights: weights.pop("d2t"), "d2t"),
        (lambda weights: weights["d2t"].fill_(1000), "outside the target's vocabulary"),
        (lambda weights: weights["t2d"].logical_not_(), "disagree"),
        (lambda weights: weights.pop("lm_head.weight"), "no lm_head"),
        (lambda weights: weights.update({"lm_head.weight": torch.zeros(300, 64)}), "lm_head.weight"),
        (lambda weights: weights.pop("fc.weight"), "fc.weight"),
    ],
)
def test_damaged_maps_and_weights(spoil, words, folder, verifier):
    weights = load_file(folder / "model.safetensors")
    spoil(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UserError, match=words):
        load_pair(verifier, folder, device="cpu", dtype="float32")


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"aux_hidden_state_layer_ids": None}, "does not describe"),
        ({"aux_hidden_state_layer_ids": [2, 3, 9]}, "reads target layers"),
        ({"transformer_layer_config": {}}, "does not describe"),
        ({"mask_token_id": 300}, "mask token 300"),
        ({"target_hidden_size": 32}, "hidden size"),
        ({"speculators_model_type": "medusa"}, "no drafter of a known kind"),
    ],
)
def test_a_config_that_does_not_fit(fields, words, folder, pairs):
    change(folder, **fields)
    with pytest.raises(UserError, match=words):
        load_drafter(folder, pairs["dflash_pruned_full_attn"].target)


def test_the_librarys_converter_read_both_ways():
    """A z-lab config and what the library's converter made of it describe one drafter: layer ids one more, the rest alike."""
    run = json.loads(golden("drafters/B_speculators/converter_runs.json").read_text())["dflash"]
    before = DFlashConfig.from_json(json.dumps(run["source_config"]))
    after = config_from_speculators(json.dumps(run["config"]))
    assert run["config"]["aux_hidden_state_layer_ids"] == [index + 1 for index in before.target_layer_ids]
    compared = ("target_layer_ids", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                "intermediate_size", "vocab_size", "block_size", "mask_token_id", "rope_theta", "rope_scaling", "rms_norm_eps",
                "max_position_embeddings", "layer_types", "depth", "draft_vocab_size", "attention_bias")
    assert {name: getattr(before, name) for name in compared} == {name: getattr(after, name) for name in compared}
    with torch.device("meta"):
        from bastion.drafters.dflash import DFlashDraftModel

        shapes = {name: list(tensor.shape) for name, tensor in DFlashDraftModel(after).state_dict().items()}
    assert shapes == run["source_keys"] == {name: entry["shape"] for name, entry in run["keys"].items()}
