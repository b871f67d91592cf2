"""Small language models from folders: which are taken, what they are checked for, and what the target lends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bastion.decoding import decode
from bastion.decoding.methods import drafter_depth
from bastion.drafters import load_pair
from bastion.drafters.small_lm_config import is_small_lm
from bastion.drafters.small_lm_learning import decoder_like
from bastion.drafters.small_lm_training import save_small_lm
from bastion.errors import UserError
from bastion.models.memory import memory_needed
from tests.test_decoding_loop import emitted
from tests.tiny_folders import VOCABULARY, write_drafter, write_target
from tests.tiny_small_lm import write_small_lm

PROMPT = [1, 40, 41, 42, 43]
ASSET = Path(__file__).resolve().parent.parent / "assets" / "drafters" / "smollm2-135m-small-lm"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    target = write_target(root / "target")
    return target, write_drafter(root / "dflash"), write_small_lm(root / "small", target)


def test_it_drafts_beside_a_drafter_of_another_kind(folders):
    target, dflash, small = folders
    pair = load_pair(target, dflash, small_lm=small, dtype="float32")
    expected = emitted(decode(pair, PROMPT, "ar", max_new_tokens=20))
    for method in ("small-lm:8", "dflash", "small-lm:2,2", "ddtree:5"):  # in turns: each has the features that it wants
        assert emitted(decode(pair, PROMPT, method, max_new_tokens=20)) == expected
    assert pair.target._watched == pair.drafter.feature_layer_ids
    assert (drafter_depth("small-lm:8", pair), drafter_depth("dflash", pair), drafter_depth("ar", pair)) == (8, 5, 5)
    turns = [decode(pair, PROMPT, method, max_new_tokens=20) for method in ("small-lm:8", "dflash")]
    texts: list[list[int]] = [[], []]
    for steps in zip(*(list(turn) for turn in turns)):
        for text, step in zip(texts, steps, strict=True):
            text += step.emitted
    assert all(text == expected[: len(text)] for text in texts)


def test_it_may_be_the_drafter_or_the_only_one(folders):
    target, _, small = folders
    for named in ({"drafter": small}, {"small_lm": small}):
        pair = load_pair(target, dtype="float32", **named)
        assert emitted(decode(pair, PROMPT, "small-lm:6", max_new_tokens=8)) == emitted(decode(pair, PROMPT, "ar", max_new_tokens=8))


def test_what_cannot_draft_is_refused_in_a_sentence(folders, tmp_path):
    target, dflash, small = folders
    with pytest.raises(UserError, match="no small language model but a drafter of the kind DFlash"):
        load_pair(target, small_lm=dflash)
    other = write_small_lm(tmp_path / "other", target)
    words = json.loads((other / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(UserError, match="their tokenizers differ .*'[ab]' is token"):
        load_pair(target, small_lm=other)
    broken = write_small_lm(tmp_path / "broken", target)
    settings = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match="do not match its config.json"):
        load_pair(target, small_lm=broken)


def test_a_padded_vocabulary_does_no_harm(folders, tmp_path):
    target, _, _ = folders
    pair = load_pair(target, small_lm=write_small_lm(tmp_path / "padded", target, vocab=VOCABULARY + 13), dtype="float32")
    assert emitted(decode(pair, PROMPT, "small-lm:6", max_new_tokens=8)) == emitted(decode(pair, PROMPT, "ar", max_new_tokens=8))


def test_the_target_lends_embedding_and_head(folders, tmp_path):
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
    small = decoder_like(target, (0, 1, 2, 3))  # all layers: it is the target, but for bfloat16 on disk
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        same = small(inputs_embeds=target.get_input_embeddings()(ids), use_cache=False).last_hidden_state
        torch.testing.assert_close(same, target.model(ids, use_cache=False).last_hidden_state)
    save_small_lm(small, tmp_path / "lent")
    assert (tmp_path / "lent" / "model.safetensors").stat().st_size < 2.2 * sum(p.numel() for p in small.parameters())
    pair = load_pair(folders[0], small_lm=tmp_path / "lent", dtype="float32")
    steps = list(decode(pair, PROMPT, "small-lm:8", max_new_tokens=24))
    assert emitted(steps) == emitted(decode(pair, PROMPT, "ar", max_new_tokens=24))
    assert sum(len(step.emitted) for step in steps[1:]) / len(steps[1:]) > 2
    file = tmp_path / "lent" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_size": 48}))
    with pytest.raises(UserError, match="its hidden_size is 64 and not 48"):
        load_pair(folders[0], small_lm=tmp_path / "lent")
    with pytest.raises(UserError, match="layers 0 to 3"):
        decoder_like(target, (0, 4))


def test_what_counts_as_one():
    assert is_small_lm({"architectures": ["LlamaForCausalLM"]})
    for other in ({}, {"architectures": ["DFlashDraftModel"]}, {"architectures": ["LlamaForCausalLMEagle3"]},
                  {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 5}):
        assert not is_small_lm(other)


def test_memory_counts_it_whole(folders):
    target, _, small = folders
    need = memory_needed(str(target), None, "float32", context=100, small_lm=str(small))
    layer = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 32 * 48
    assert need.small_lm == 4 * (2 * layer + VOCABULARY * 32 + 2 * 2 * 2 * 8 * 100)
    assert "small model" in need.words() and need.total == need.weights + need.kv_cache + need.small_lm
    as_drafter = memory_needed(str(target), str(small), "float32", context=100)
    assert as_drafter.drafter == need.small_lm


def test_the_one_shipped_drafts_well_and_losslessly(default_pair):
    """On a prompt that is hard for every drafter; its card tells of held-out dialogues."""
    assert ASSET.is_dir() and (ASSET / "model.safetensors").stat().st_size < 25e6
    prompt = "Why is the sky blue? Answer in two sentences."
    expected = emitted(decode(default_pair, prompt, "ar", max_new_tokens=32))
    for method in ("small-lm:12", "small-lm:2,1,1"):
        steps = list(decode(default_pair, prompt, method, max_new_tokens=32))
        assert emitted(steps) == expected
        assert (len(expected) - 1) / len(steps[1:]) > 1.3
