"""`python -m bastion bench` on the real default pair: interrupted, killed, and finished; its files and refusals."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bastion.cli import main
from bastion.records import RunStore
from bastion.records.benchmark_store import RESULTS, BenchmarkStore

from tests.browser import studio_home

ROOT = Path(__file__).resolve().parents[1]
ASKED = ["--sets", "ours", "--methods", "ar,dflash,ddtree:16,bastion", "--limit", "4", "--max-new-tokens", "8", "--device", "cpu",
         "--dtype", "float32"]
TOTAL = 20   # three prompts of one turn and one of two, by four methods


def start(home: Path, *more: str) -> subprocess.Popen:
    environment = {**os.environ, "BASTION_HOME": str(home)}
    # Where the tests themselves were started with Ctrl-C ignored, as a shell starts what runs beside it, the command must not be.
    return subprocess.Popen([sys.executable, "-m", "bastion", "bench", *ASKED, *more], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def results(home: Path) -> bytes:
    files = list((home / "benchmarks").glob(f"*/{RESULTS}"))
    assert len(files) <= 1
    return files[0].read_bytes() if files else b""


def until_lines(home: Path, process: subprocess.Popen, count: int) -> None:
    """Until so many results stand in the file. A process that ends before fails the test."""
    while results(home).count(b"\n") < count:
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"it ended early: {process.communicate()}")


@pytest.fixture(scope="module")
def homes(default_model, calibrated, tmp_path_factory):
    return [studio_home(tmp_path_factory.mktemp(name), default_model) for name in ("disturbed", "undisturbed")]


@pytest.fixture(scope="module")
def disturbed(homes):
    """Interrupted after 3 results, killed about halfway, and started again: what each left and said."""
    home = homes[0]
    first = start(home)
    until_lines(home, first, 3)
    first.send_signal(signal.SIGINT)
    _, words = first.communicate(timeout=600)
    left = results(home)
    second = start(home)
    try:
        until_lines(home, second, 9)
        assert second.poll() is None
        with pytest.MonkeyPatch.context() as patch:   # at the same time, from a second process: this one
            patch.setenv("BASTION_HOME", str(home))
            third_status = main(["bench", *ASKED])
    finally:
        second.kill()
        second.communicate()
    assert second.returncode == -signal.SIGKILL
    return {"status": first.returncode, "words": words, "interrupted": left, "killed": results(home), "beside": third_status}


@pytest.fixture(scope="module")
def finished(homes, disturbed):
    process = start(homes[0], "--json", str(homes[0] / "table.json"))
    out, words = process.communicate(timeout=900)
    assert process.returncode == 0, words
    return {"out": out, "words": words}


@pytest.fixture(scope="module")
def undisturbed(homes, finished, default_pair):
    """The same request in a home of its own, in this process, after the other so that both use one calibration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BASTION_HOME", str(homes[1]))
        patch.setattr("bastion.cli.pairs.load", lambda *_: default_pair)
        assert main(["bench", *ASKED, "--json", str(homes[1] / "table.json"), "--csv", str(homes[1] / "table.csv")]) == 0
    return json.loads((homes[1] / "table.json").read_text())


def test_ctrl_c_leaves_a_benchmark_that_goes_on_and_says_how(disturbed):
    assert disturbed["status"] == 130 and 3 <= disturbed["interrupted"].count(b"\n") < TOTAL
    count = disturbed["interrupted"].count(b"\n")
    assert f"stopped after {count} of {TOTAL} decodes; the same command goes on from there" in disturbed["words"]
    assert "Traceback" not in disturbed["words"]


def test_a_second_process_is_refused_meanwhile(disturbed):
    assert disturbed["beside"] == 2


def test_after_sigkill_the_same_command_finishes_and_repeats_no_finished_decode(homes, disturbed, finished):
    killed, now = disturbed["killed"], results(homes[0])
    whole = killed[:killed.rfind(b"\n") + 1]
    assert 9 <= whole.count(b"\n") < TOTAL and whole.startswith(disturbed["interrupted"])
    assert now.startswith(whole) and now.count(b"\n") == TOTAL
    cells = [(row["prompt"], row["turn"], row["method"]) for row in map(json.loads, now.splitlines())]
    assert len(set(cells)) == TOTAL
    assert f"goes on: {whole.count(bytes([10]))} of {TOTAL} decodes are done" in finished["words"]
    (benchmark,) = BenchmarkStore(homes[0] / "benchmarks").list()
    assert benchmark.finished and not benchmark.held
    assert len(BenchmarkStore(homes[0] / "benchmarks").open(benchmark.id).info["sessions"]) == 3


def test_its_table_equals_an_undisturbed_ones_in_ids_and_tau(homes, finished, undisturbed):
    rows = [{(r["prompt"], r["turn"], r["method"]): (r["ids"], r["lengths"], r["nodes"], r["surrogates"])
             for r in map(json.loads, results(home).splitlines())} for home in homes]
    assert rows[0] == rows[1] and len(rows[0]) == TOTAL
    tables = [json.loads((homes[0] / "table.json").read_text()), undisturbed]
    same = ("set", "method", "temperature", "prompts", "tau", "tokens", "steps", "nodes_mean", "identical_to_ar")
    assert [[row[name] for name in same] for row in tables[0]["rows"]] == [[row[name] for name in same] for row in tables[1]["rows"]]
    assert [row["method"] for row in tables[1]["rows"]] == ["ar", "dflash", "ddtree:16", "bastion"]
    assert all(row["identical_to_ar"] == row["prompts"] == 4 for row in tables[1]["rows"])   # float32: lossless


def test_tau_speed_and_speedup_follow_from_the_rows(homes, undisturbed):
    rows = [json.loads(line) for line in results(homes[1]).splitlines()]

    def of(method):
        own = [r for r in rows if r["method"] == method]
        tokens, steps = sum(sum(r["lengths"]) for r in own), sum(len(r["lengths"]) for r in own)
        return tokens / steps, tokens / sum(r["draft"] + r["build"] + r["verify"] + r["commit"] for r in own)

    plain = of("ar")[1]
    for row in undisturbed["rows"]:
        tau, speed = of(row["method"])
        assert row["tau"] == pytest.approx(tau, rel=1e-12) and row["speedup"] == pytest.approx(speed / plain, rel=1e-12)
    lines = list(csv.DictReader((homes[1] / "table.csv").open()))
    assert [float(line["tau"]) for line in lines] == [row["tau"] for row in undisturbed["rows"]]


def test_a_finished_benchmark_is_shown_again_without_a_model(homes, undisturbed, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BASTION_HOME", str(homes[1]))
    monkeypatch.setattr("bastion.cli.pairs.load", lambda *_: pytest.fail("nothing is left to measure"))
    before = results(homes[1])
    files = {name: tmp_path / f"t.{name}" for name in ("latex", "markdown")}
    assert main(["bench", *ASKED, *[part for name, file in files.items() for part in (f"--{name}", str(file))]]) == 0
    said = capsys.readouterr()
    assert "is finished; --again measures it anew" in said.err and "ddtree:16" in said.out and results(homes[1]) == before
    tau = undisturbed["rows"][2]["tau"]
    assert f"{tau:.2f}" in said.out and f"{tau:.2f}" in files["markdown"].read_text() and f"{tau:.2f}" in files["latex"].read_text()
    assert main(["bench", "--list"]) == 0
    listed = capsys.readouterr().out
    assert f"{TOTAL} of {TOTAL}" in listed and "gsm8k" in listed and "to be fetched" in listed


def test_runs_that_are_kept_are_the_rows_decodes(homes, default_pair, monkeypatch, tmp_path):
    """Above temperature 0 too: the same seed draws the same tokens."""
    monkeypatch.setenv("BASTION_HOME", str(homes[1]))
    monkeypatch.setattr("bastion.cli.pairs.load", lambda *_: default_pair)
    file = tmp_path / "one.jsonl"
    file.write_text('{"prompt": "Count from one to ten."}\n')
    asked = ["bench", "--sets", str(file), "--methods", "ar,dflash", "--temperatures", "1", "--max-new-tokens", "8", "--seed", "5"]
    assert main([*asked, "--keep-runs", "--json", str(tmp_path / "kept.json")]) == 0
    kept = json.loads((tmp_path / "kept.json").read_text())
    benchmark = BenchmarkStore().open(kept["id"])
    runs = RunStore()
    for row in benchmark.rows:
        run = runs.open(row.run)
        assert run.complete and tuple(run.output_ids) == row.ids and run.info["group"]["id"] == benchmark.id
        assert all(step.trace is not None for step in run.steps if step.kind == "decode")
    assert main([*asked, "--json", str(tmp_path / "again.json")]) == 0   # another request: runs are not kept
    again = BenchmarkStore().open(json.loads((tmp_path / "again.json").read_text())["id"])
    assert again.id != benchmark.id and [row.ids for row in again.rows] == [row.ids for row in benchmark.rows]
