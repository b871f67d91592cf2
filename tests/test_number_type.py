"""What `auto` stands for, each branch of it with the two trials told what to say; and trials kept on disk."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import Gemma2Config, LlamaConfig

from bastion import decode, load_pair
from bastion.errors import UserError
from bastion.figures.number_type_words import number_type_words
from bastion.home import trials_dir
from bastion.jobs.pairs import memory_words
from bastion.jobs.request import PairChoice
from bastion.models import number_type as module
from bastion.models import memory_needed, trials
from bastion.models.cache import RowCache
from bastion.models.number_type import CAN_DIFFER, bits_are_kept, is_lean, likely_type, number_type
from tests.tiny_folders import write_drafter, write_target

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LLAMA = LlamaConfig(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=7, vocab_size=50)

GEMMA = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 7,
         "vocab_size": 50}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BASTION_DTYPE")
    return tmp_path / "home"


@pytest.fixture
def told(monkeypatch):
    """Sets what the two trials find; the list returned holds what was tried."""
    asked = []

    def tell(faster: bool, same: bool) -> list[str]:
        def says(name, value):
            return lambda *_: asked.append(name) or value

        module.cpu_prefers_bfloat16.cache_clear()
        monkeypatch.setattr(module, "_bfloat16_is_faster", says("faster", faster))
        monkeypatch.setattr(module, "keeps_bits", says("bits", same))
        return asked

    yield tell
    module.cpu_prefers_bfloat16.cache_clear()


@pytest.mark.parametrize("faster, same, dtype, why", [
    (True, True, torch.bfloat16, "measured faster here; a tree's tokens have the bits of plain decoding"),
    (True, False, torch.float32, f"bfloat16 would be faster here, but {CAN_DIFFER}"),
    (False, True, torch.float32, "measured no slower here than bfloat16"),
    (False, False, torch.float32, "measured no slower here than bfloat16"),
])
def test_auto_on_a_cpu(told, faster, same, dtype, why):
    asked = told(faster, same)
    assert likely_type("nowhere", "cpu") is None
    found = number_type("auto", CPU, LLAMA)
    assert (found.dtype, found.why) == (dtype, why) and found.words() == f"{found.name} ({why})"
    assert asked == (["faster", "bits"] if faster else ["faster"])
    module.cpu_prefers_bfloat16.cache_clear()  # as in the next process
    assert number_type("auto", CPU, LLAMA) == found and len(asked) == 1 + faster


def test_auto_on_a_gpu_and_by_the_environment(told, monkeypatch):
    asked = told(True, True)
    assert number_type("auto", CUDA, LLAMA).dtype == torch.bfloat16 and CAN_DIFFER in number_type("auto", CUDA, LLAMA).why
    monkeypatch.setenv("BASTION_DTYPE", "float32")
    assert number_type("auto", CPU, LLAMA).words() == "float32 (as asked, set by BASTION_DTYPE)"
    assert likely_type("nowhere", "cuda:0") == "float32" and not asked
    monkeypatch.setenv("BASTION_DTYPE", "int3")
    with pytest.raises(UserError, match="no number type 'int3'"):
        number_type("auto", CPU, LLAMA)


def test_a_number_type_by_name_says_what_it_may_cost(told):
    told(True, False)
    assert number_type("float32", CPU, LLAMA).why == "as asked"
    assert number_type("bfloat16", CPU, LLAMA).why == number_type("float16", CPU, LLAMA).why == f"as asked; {CAN_DIFFER}"
    other = LlamaConfig(**{**LLAMA.to_dict(), "hidden_size": 64})
    told(False, True)
    assert number_type("bfloat16", CPU, other).why == "as asked; a tree's tokens have the bits of plain decoding"
    assert number_type("bfloat16", CPU, LLAMA).why == f"as asked; {CAN_DIFFER}"  # found before, for these widths
    assert CAN_DIFFER in number_type("bfloat16", CUDA, other).why


def test_what_decides_is_the_widths_and_not_the_depth_or_the_names(told):
    asked = told(True, True)
    deeper = LlamaConfig(**{**LLAMA.to_dict(), "num_hidden_layers": 3, "eos_token_id": 5})
    assert bits_are_kept(LLAMA) and bits_are_kept(deeper) and asked == ["bits"]
    assert bits_are_kept(LlamaConfig(**{**LLAMA.to_dict(), "intermediate_size": 96})) and asked == ["bits"] * 2
    assert not bits_are_kept(Gemma2Config()) and asked == ["bits"] * 2  # no family of ours: nothing to try
    assert is_lean(LLAMA) and is_lean({"model_type": "qwen3"}) and not is_lean({"model_type": "gemma3"}) and not is_lean({})


def test_a_trial_that_cannot_be_made_promises_nothing(told, monkeypatch):
    told(True, True)
    monkeypatch.setattr(module, "keeps_bits", lambda config: torch.empty(1, 2) @ torch.empty(3, 1))
    assert number_type("auto", CPU, LLAMA).dtype == torch.float32


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"answer": "yes"}', "\x00"])
def test_a_damaged_answer_is_tried_again(damage):
    asked = []
    ask = lambda: asked.append(1) or True  # noqa: E731
    assert trials.tried("question", {"a": 1}, ask) and trials.tried("question", {"a": 1}, ask) and len(asked) == 1
    [file] = trials_dir().iterdir()
    file.write_text(damage)
    assert trials.answer("question", {"a": 1}) is None
    assert trials.tried("question", {"a": 1}, ask) and len(asked) == 2 and json.loads(file.read_text())["answer"] is True
    assert [each.name for each in trials_dir().iterdir()] == [file.name]


def test_an_answer_holds_for_this_machine_these_libraries_and_this_code(monkeypatch):
    trials.tried("question", {}, lambda: True)
    for name, value in (("_kind_of_processor", "other"), ("_libraries", {"torch": "9"}), ("_code", "other")):
        with monkeypatch.context() as changed:
            changed.setattr(trials, name, lambda value=value: value)
            assert trials.answer("question", {}) is None
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert trials.answer("question", {}) is None
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert trials.answer("question", {}) is True
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert trials.answer("question", {}) is None


def test_a_home_that_cannot_be_written_only_costs_the_trial(home):
    home.write_text("no folder")
    asked = []
    assert trials.tried("question", {}, lambda: asked.append(1) or True) and trials.tried("question", {}, lambda: asked.append(1) or True)
    assert len(asked) == 2


def test_a_pair_says_which_it_runs_in_and_why_and_pages_know_it_from_then_on(told, tmp_path):
    told(True, True)
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")
    heard = []
    pair = load_pair(target, drafter, device="cpu", on_notice=heard.append)
    assert pair.dtype == torch.bfloat16 and pair.dtype_why.startswith("measured faster here") and not heard
    assert likely_type(str(target), "cpu") == "bfloat16" and likely_type("somebody/else", "cpu") is None
    ids = [[token for step in decode(pair, [5, 6, 7], method, max_new_tokens=12, stop_token_ids=()) for token in step.emitted]
           for method in ("ar", "ddtree:6")]
    assert len(ids[0]) == len(ids[1]) == 12
    assert number_type_words({"dtype": pair.dtype_name, "dtype_why": pair.dtype_why}) == (
        "bfloat16 (measured faster here; a tree's tokens have the bits of plain decoding)")
    assert number_type_words({"dtype": "float32"}) == "float32" and number_type_words({}) == ""

    other = write_target(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    told(True, False)
    assert load_pair(other, device="cpu").dtype == torch.float32 and likely_type(str(other), "cpu") == "float32"
    load_pair(other, device="cpu", dtype="bfloat16", on_notice=heard.append)
    assert heard == [f"Loading {other} in bfloat16 (as asked; {CAN_DIFFER})"]


def test_memory_is_reckoned_in_what_auto_will_take(told, monkeypatch):
    """As far as that is known, else in the larger."""
    told(True, True)
    words = lambda: memory_words(PairChoice("qwen3-8b"), "cpu")  # noqa: E731
    assert "in float32" in words()
    number_type("auto", CPU, LLAMA)
    config = LlamaConfig()
    monkeypatch.setattr(module, "_config_at_hand", lambda source: config)
    assert "in float32" in words()
    bits_are_kept(config)
    need = memory_needed("qwen3-8b", dtype="bfloat16", on_cpu=True)
    assert words() == f"needs about {need.words()}" and "in bfloat16" in words()
    cache = RowCache(1, 1, 4096, 128, torch.float32)
    assert need.kv_cache == pytest.approx(36 * 8 * (cache.keys.nbytes + cache.values.nbytes), rel=0.01)
    on_gpu, gemma = memory_needed("qwen3-8b"), {**GEMMA, "model_type": "gemma3_text"}
    assert on_gpu.kv_cache * 2 <= need.kv_cache and on_gpu.weights == need.weights
    assert memory_needed(gemma, on_cpu=True) == memory_needed(gemma)  # the library's own cache
    assert memory_needed({**GEMMA, "model_type": "llama"}, on_cpu=True).kv_cache > memory_needed(gemma).kv_cache


def test_the_measurement_itself_leaves_the_threads_as_they_were():
    threads = torch.get_num_threads()
    assert module._bfloat16_is_faster() in (True, False)
    assert torch.get_num_threads() == threads
