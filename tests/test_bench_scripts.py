"""The bench on a tiny pair: that every stage runs, that results go on after a kill, and what the numbers mean."""

import importlib
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bastion.errors import UserError
from bench import best_budget, commit, decoders, end_to_end, floor, page_cost, ratios, run, tables
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
    monkeypatch.setattr(floor, "cold_bytes", lambda device: 1 << 16)
    content = run.main([*options, "--markdown", str(at_hand / "out.md")])
    rows = {row["method"]: row for row in content["tables"]["decoding"]["rows"]}
    assert list(rows) == ["ar", "ddtree:4", "bastion"] and rows["ar"]["times_ar"] == 1.0
    assert all(row["as_ar"] == row["prompts"] == 2 for row in rows.values())   # lossless: the same ids, one prompt of each set
    assert rows["ar"]["tau"] == 1.0 and rows["ddtree:4"]["nodes"] > 1
    assert [row["nodes"] for row in content["tables"]["trees"]] == [16, 64, 256, 1024]
    assert content["tables"]["commit"][0]["times"] == 1.0 and content["tables"]["floor"][0]["weight_bytes"] > 0
    (ratio,) = content["tables"]["decoding"]["ratios"]   # generate was not asked for
    assert (ratio["above"], ratio["below"], ratio["aim"]) == ("bastion", "ar", 1.4) and rows["ar"]["dtype"] == "float32"
    said = capsys.readouterr().out
    assert all(word in said for word in ("decoding", "x ar", "growth ms", "commit ms", "floor", "Took", "our methods 4 of 4", "bastion / ar"))
    kept = (at_hand / "out.md").read_text()
    assert str(at_hand) not in kept and "--prompts FOLDER" in kept and "| method | dtype |" in kept and "### floor" in kept
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
        return {"tokens": tokens, "first_seconds": 1.0, "seconds": seconds, "steps": steps, "nodes": 2 * steps, "as_ar": True}

    units = {"a/0": {"ar": told(10, 1.0, 10), "bastion": told(10, 0.5, 5)}, "a/1": {"ar": told(30, 3.0, 30), "bastion": told(30, 1.0, 10)},
             "b/0": {"ar": told(20, 1.0, 20), "bastion": told(20, 1.0, 10)}}
    ar, tree = end_to_end.summarise(units)
    assert ratios.mean(ratios.by_set(units, "bastion", "ar")) == pytest.approx((2 * 3) ** 0.25)   # a: sqrt(2 x 3), b: 1; then the sets
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


def test_commits_are_timed_in_the_cache_that_the_target_uses_and_behind_the_context(pair):
    found = commit.measure(pair.target, 3, contexts=(8, 64))
    rows = commit.summarise(found)
    own = type(pair.target.new_cache(8)).__name__
    assert [(row["cache"], row["context"]) for row in rows] == [(own, 8), (own, 64), ("KVCache", 8), ("KVCache", 64)]
    assert rows[0]["ms"]["count"] == 3 and rows[0]["times"] == rows[2]["times"] == 1.0


def test_the_floor_is_the_best_reading_of_an_array_of_the_weights_size():
    found = {"seconds": {"read again": [0.02, 0.01], "read cold": [0.1, 0.2], "plain": [0.03, 0.03], "4": [0.02]}, "bytes": {"read again": 100, "read cold": 500}}
    again, cold, plain, four = floor.summarise(found, 200)
    assert (again["floor_ms"], plain["times_floor"], four["times_floor"]) == (pytest.approx(20), pytest.approx(1.5), pytest.approx(1.0))
    assert (again["best_bytes_per_second"], cold["best_bytes_per_second"], cold["median_bytes_per_second"]) == (1e4, 5e3, pytest.approx(500 / 0.15))
    assert "plain decoding" in floor.tabulate([again, cold, plain, four]).text()


def test_a_cold_array_is_three_caches_large_where_memory_allows(monkeypatch):
    monkeypatch.setattr(floor, "last_level_cache_bytes", lambda: 400 << 20)
    monkeypatch.setattr(floor, "free_memory", lambda device: 64 << 30)
    assert floor.cold_bytes(torch.device("cpu")) == 1200 << 20
    monkeypatch.setattr(floor, "free_memory", lambda device: 2 << 30)
    assert floor.cold_bytes(torch.device("cpu")) == 512 << 20
    monkeypatch.setattr(floor, "last_level_cache_bytes", lambda: None)
    monkeypatch.setattr(floor, "free_memory", lambda device: None)
    assert floor.cold_bytes(torch.device("cpu")) == 1 << 30


def told(tokens, seconds, first=1.0):
    return {"tokens": tokens, "emitted": tokens + 1, "seconds": seconds, "first_seconds": first}


def test_ratios_are_judged_by_the_one_method_that_is_best_on_the_mean():
    units = {"a/0": {"generate": told(10, 8.0), "ar": told(10, 4.0), "bastion": told(10, 2.0), "bastion+ngram": told(10, 1.0)},
             "b/0": {"generate": told(10, 8.0), "ar": told(10, 4.0), "bastion": told(10, 2.0), "bastion+ngram": told(10, 4.0)},
             "b/1": {"generate": told(10, 8.0), "ar": told(0, 0.0), "bastion": told(10, 1.0), "bastion+ngram": told(10, 1.0)}}
    plain, best, ahead = ratios.judge(units)
    assert (plain["above"], plain["mean"], plain["holds"], plain["least"], plain["most"]) == ("ar", pytest.approx(2), True, 2.0, 2.0)
    assert (best["above"], best["below"], best["mean"]) == ("bastion", "ar", pytest.approx(2))   # +ngram: sqrt(4 x 1), and b/1 has no ar: a tie
    assert (ahead["below"], ahead["mean"]) == ("generate", pytest.approx((4 * (4 * 8) ** 0.5) ** 0.5))
    low, high = ahead["interval"]
    assert 4 <= low <= ahead["mean"] <= high <= 8 and plain["interval"] == (pytest.approx(2), pytest.approx(2))
    assert plain["whole"] == pytest.approx(9 / 5) and "yes" in ratios.tabulate([plain]).text()


def test_a_report_names_no_place_of_this_machine():
    assert tables.command_words("bench.run", ["--quick", "--prompts", "/a/b", "--json=/c", "--only", "a b"]) == \
        "python -m bench.run --quick --prompts FOLDER --json=FILE --only 'a b'"
    assert tables.Table(["a", "b"], [["x|y", "1"]], below=["so"]).markdown() == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n\n- so"


def test_what_a_page_costs_is_its_ratio_pair_by_pair():
    pairs = [{"page": {"tokens": 64, "seconds": s, "wall": 2 * s}, "line": {"tokens": 64, "seconds": 1.0, "wall": 2.0}} for s in (1.0, 1.1, 1.5)]
    steps, wall = page_cost.summarise(pairs)
    assert (steps["median"], wall["median"], steps["tokens"]) == (1.1, 1.1, [64]) and "64 tokens" in page_cost.tabulate([steps, wall]).text()


def test_a_file_begun_on_another_machine_is_not_gone_on_with(monkeypatch, tmp_path):
    from bench import options

    here = {"processor": "p", "cores": 2, "versions": {}}
    monkeypatch.setattr(options, "machine", lambda: here)
    monkeypatch.setattr("bastion.load_pair", lambda *_, **__: SimpleNamespace(device_name="d", dtype_name="float32", drafter=None, drafter_name="",
                                                                              target=SimpleNamespace(name="t")))
    monkeypatch.setattr(importlib.import_module("bastion.decoding.calibrate"), "stored_calibration", lambda pair: None)
    asked = SimpleNamespace(pair="p", drafter=None, dtype="float32", keep_calibration=True)
    options.calibrated_pair(asked, results := Results(tmp_path / "r.json", {}, {}))
    results.unit("a", "b", lambda: 1)
    options.calibrated_pair(asked, Results(tmp_path / "r.json", {}, {}))
    here["cores"] = 4
    with pytest.raises(UserError, match="another machine"):
        options.calibrated_pair(asked, Results(tmp_path / "r.json", {}, {}))


def test_weight_bytes_are_those_of_layers_and_head(pair):
    model = pair.target.model
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    assert floor.weight_bytes(pair) == pytest.approx(4 * sum(p.numel() for p in matrices), rel=0.02)


def test_spreads_and_turns():
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]).json() == {"median": 3.0, "low": 2.0, "high": 4.0, "count": 5}
    assert [turned("abc", turn) for turn in (0, 1, 3, -1)] == [list("abc"), list("bca"), list("abc"), list("cab")]


def test_a_file_of_something_else_is_not_written_over(tmp_path):
    other = tmp_path / "notes.json"
    other.write_text("[1, 2]")
    with pytest.raises(UserError, match="no result"):
        Results(other, {}, {})
    assert other.read_text() == "[1, 2]"
