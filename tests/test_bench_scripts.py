"""The bench on a tiny pair: that every stage runs, that results go on after a kill, and what the numbers mean."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bastion.errors import UserError
from bench import best_budget, commit, decoders, end_to_end, memory_floor, run
from bench.measure import spread, turned
from bench.results import Results
from tests.tiny_pair import tiny_calibration, tiny_pair


@pytest.fixture(scope="module")
def pair():
    made = tiny_pair(vocab=256, positions=256, dtype=torch.float32)
    kept = tiny_calibration(made).save()
    yield replace(made, tokenizer=SimpleNamespace(encode_prompt=lambda text: [1 + ord(c) % 200 for c in text]))
    kept.unlink()


@pytest.fixture
def at_hand(pair, monkeypatch, tmp_path):
    """The tiny pair in place of the loaded one, and two prompt sets of two prompts."""
    def loaded(asked, results):
        results.content["facts"].update(processor="p", cores=2, target="tiny", dtype="float32", device="cpu", versions={})
        return pair

    monkeypatch.setattr(run, "calibrated_pair", loaded)
    monkeypatch.setattr(best_budget, "calibrated_pair", loaded)
    for name in ("letters", "words"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"id": f"{n}", "prompt": f"{name} {n}"}) + "\n" for n in range(2)))
    return tmp_path


def test_every_stage_but_the_page_runs_and_a_second_run_measures_nothing(at_hand, capsys, monkeypatch):
    file = at_hand / "out.json"
    options = ["--quick", "--prompts", str(at_hand), "--tokens", "6", "--only", "decoding,trees,commit,floor", "--methods", "ar,ddtree:4,bastion",
               "--json", str(file)]
    monkeypatch.setattr(run.memory_floor, "ARRAY_BYTES", 1 << 16)
    content = run.main(options)
    rows = {row["method"]: row for row in content["tables"]["decoding"]}
    assert list(rows) == ["ar", "ddtree:4", "bastion"] and rows["ar"]["times_ar"] == 1.0
    assert all(row["as_ar"] == row["prompts"] == 2 for row in rows.values())   # lossless: the same ids, one prompt of each set
    assert rows["ar"]["tau"] == 1.0 and rows["ddtree:4"]["nodes"] > 1
    assert [row["nodes"] for row in content["tables"]["trees"]] == [16, 64, 256, 1024]
    assert content["tables"]["commit"][0]["times"] == 1.0 and content["tables"]["floor"][0]["weight_bytes"] > 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("decoding", "x ar", "growth ms", "commit ms", "floor"))
    monkeypatch.setattr(end_to_end, "build_decoders", lambda *_: pytest.fail("measured again"))
    assert run.main(options)["units"] == json.loads(file.read_text())["units"]
    with pytest.raises(UserError, match="other settings"):
        run.main([*options, "--tokens", "7"])
    with pytest.raises(UserError, match="no stage"):
        run.main(["--only", "speed"])


def test_best_budget_judges_bastion_by_the_best_fixed_one(at_hand, capsys):
    content = best_budget.main(["--prompts", str(at_hand), "--limit", "1", "--tokens", "8"])
    found = content["tables"]["best_budget"]
    assert [row["method"] for row in found["rows"]] == ["ar", *end_to_end.FIXED, "bastion"]
    assert found["verdicts"][0]["best"] in end_to_end.FIXED and "best on the mean" in capsys.readouterr().out
    assert {row["method"] for row in found["why"]} == {row["method"] for row in found["rows"]}


def row(method, **sets):
    return {"method": method, "speed": sum(sets.values()) / len(sets), "sets": sets}


def test_the_verdict_by_hand():
    rows = [row("ddtree:4", a=10.0, b=10.0), row("ddtree:8", a=9.0, b=13.0), row("bastion", a=10.0, b=12.5)]
    found = best_budget.verdict(rows)
    assert found["best"] == "ddtree:8" and found["mean"] == pytest.approx(22.5 / 22) and not found["holds"]   # b: 0.9615
    assert found["sets"]["a"] == {"against_best_on_mean": 10 / 9, "best_here": "ddtree:4", "against_best_here": 1.0}
    assert best_budget.verdict([*rows[:2], row("bastion", a=9.5, b=12.7)])["holds"]
    assert not best_budget.verdict([*rows[:2], row("bastion", a=8.9, b=13.0)])["holds"]   # within 3 % on each set, slower on the mean


def test_speeds_are_means_over_sets_and_ratios_are_prompt_by_prompt():
    def told(tokens, seconds, steps):
        return {"tokens": tokens, "seconds": seconds, "steps": steps, "nodes": 2 * steps, "as_ar": True}

    units = {"a/0": {"ar": told(10, 1.0, 10), "bastion": told(10, 0.5, 5)}, "a/1": {"ar": told(30, 3.0, 30), "bastion": told(30, 1.0, 10)},
             "b/0": {"ar": told(20, 1.0, 20), "bastion": told(20, 1.0, 10)}}
    ar, tree = end_to_end.summarise(units)
    assert ar["sets"] == {"a": 10.0, "b": 20.0} and ar["speed"] == 15.0
    assert tree["sets"] == {"a": pytest.approx(40 / 1.5), "b": 20.0} and tree["tau"] == 60 / 25
    assert tree["against"]["ar"]["median"] == 2.0 and tree["times_ar"] == pytest.approx((40 / 1.5 + 20) / 30)
    assert tree["times_generate"] is None


def test_generate_is_timed_from_its_first_token_in_each_of_its_ways():
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    ids, answers = [5, 9, 5, 9, 5], []
    for options in ({}, {"prompt_lookup_num_tokens": 4}, {"assistant_model": decoders.shallow(model, 2)}):
        told, emitted = decoders.library_decoder(model, [63], **options)(ids, 9)
        assert 0 < told.tokens <= len(emitted) - 1 and told.seconds > 0 and told.first_seconds > 0
        answers.append(emitted)
    assert answers[0] == answers[1] == answers[2]


def test_commit_rows_are_put_behind_the_context(pair):
    rows = commit.summarise(commit.measure(pair.target.config, torch.device("cpu"), torch.float32, 3, contexts=(8, 64)))
    assert [row["context"] for row in rows] == [8, 64] and rows[0]["ms"]["count"] == 3


def test_weight_bytes_are_those_of_layers_and_head(pair):
    model = pair.target.model
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    assert memory_floor.weight_bytes(pair) == pytest.approx(4 * sum(p.numel() for p in matrices), rel=0.02)


def test_spreads_and_turns():
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]).json() == {"median": 3.0, "low": 2.0, "high": 4.0, "count": 5}
    assert [turned("abc", turn) for turn in (0, 1, 3, -1)] == [list("abc"), list("bca"), list("abc"), list("cab")]


def test_a_file_of_something_else_is_not_written_over(tmp_path):
    other = tmp_path / "notes.json"
    other.write_text("[1, 2]")
    with pytest.raises(UserError, match="no result"):
        Results(other, {}, {})
    assert other.read_text() == "[1, 2]"
