"""The GPU check runs where there is no GPU, and one stage's failure is not the next one's."""

from __future__ import annotations

import json

from bastion.latency import Calibration
from bench import gpu_check


def test_the_check_runs_on_a_cpu_and_says_which_stage_failed(tmp_path, monkeypatch, capsys):
    def broken(check):
        raise RuntimeError("planted")

    monkeypatch.setitem(gpu_check.STAGES, "steps", broken)
    stages = ["device", "correctness", "floor", "steps", "calibration", "profile"]
    status = gpu_check.main(["--device", "cpu", "--tiny", "--out", str(tmp_path), "--stages", ",".join(stages)])
    lines = capsys.readouterr().out.splitlines()
    assert status == 1 and lines[-1] == "5 of 6 stages done"
    assert [line.partition(":")[0] for line in lines[:-1]] == stages and "FAILED: RuntimeError: planted" in lines[3]
    read = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in stages}
    assert [read[name]["ok"] for name in stages] == [True, True, True, False, True, True]
    assert all(read["correctness"]["checks"].values()) and len(read["correctness"]["checks"]) >= 12
    floor = read["floor"]
    assert {row["kind"] for row in floor["rows"]} >= {"eager", "static", "graphs"}
    assert all(abs(row["over_floor"] * floor["floor_seconds"] / row["seconds"] - 1) < 1e-9 for row in floor["rows"])
    assert floor["weight_bytes"] == 2 * weights_of_tiny()
    assert gpu_check.main(["--unpack", str(tmp_path / "profile.json"), "--out", str(tmp_path / "profiles")]) == 0
    [profile] = (tmp_path / "profiles").iterdir()
    kept = Calibration.load(profile)
    assert kept.buckets == (1, 2, 4, 8) and kept.raw_rmse == read["calibration"]["graphs"]["raw_rmse"]
    assert sum(gpu_check.BUDGETS.values()) < 480 and set(gpu_check.BUDGETS) == set(gpu_check.STAGES)


def weights_of_tiny() -> int:
    """Values that a forward reads, but for norms: layers and head; the embedding is looked up, not read."""
    shape = gpu_check.TINY
    hidden, size = shape["hidden_size"], shape["head_dim"]
    attention = (2 * shape["num_attention_heads"] + 2 * shape["num_key_value_heads"]) * size * hidden
    layer = attention + 3 * hidden * shape["intermediate_size"]
    return shape["num_hidden_layers"] * layer + shape["vocab_size"] * hidden


def test_a_stage_that_takes_too_long_is_stopped(tmp_path, monkeypatch, capsys):
    def endless(check):
        while True:
            pass

    monkeypatch.setitem(gpu_check.STAGES, "device", endless)
    monkeypatch.setitem(gpu_check.BUDGETS, "device", 1)
    assert gpu_check.main(["--device", "cpu", "--tiny", "--out", str(tmp_path), "--stages", "device"]) == 1
    assert "device: FAILED: OutOfTime: not done in 1 s" in capsys.readouterr().out
