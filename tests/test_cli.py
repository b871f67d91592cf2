"""The command line: what it prints, what it writes, and one line for every mistake."""

import io
import json
import os
import subprocess
import sys
import zipfile

import pytest

from bastion.cli import main
from tests.tiny_folders import STOP, VOCABULARY, write_drafter, write_target

DESIGNED = {"text", "output_ids", "prompt_ids", "method", "pair", "device", "dtype", "temperature", "tau", "acceptance_lengths", "steps",
            "seconds_prefill", "seconds_decode", "tokens_per_second", "finish_reason"}
DESIGNED_STEP = {"kind", "emitted", "context", "root", "nodes", "token_ids", "parents", "depths", "path_log_probs", "accepted", "bonus",
                 "surrogate", "stop_reason", "seconds", "predicted_verify_seconds"}
SHEEP = "A farmer has 17 sheep and buys 5 more. How many sheep are there now? Explain."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    """Options that name the tiny pair."""
    root = tmp_path_factory.mktemp("tiny")
    return ["--target", str(write_target(root / "target")), "--drafter", str(write_drafter(root / "drafter")), "--device", "cpu",
            "--dtype", "float32"]


@pytest.fixture
def target_only(tiny) -> list[str]:
    return tiny[:2] + tiny[4:]


def json_of(capsys, *arguments: str) -> dict:
    """What a command writes to standard output with --json -, which must be that object alone."""
    assert main([*arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *arguments: str) -> str:
    """The one line on standard error of a command that must exit with 2."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("bastion: ")
    return lines[0].removeprefix("bastion: ")


# ---- help and mistakes --------------------------------------------------------------------------

@pytest.mark.parametrize("arguments", [["--help"], [], ["generate", "--help"], ["compare", "--help"], ["runs", "list"]])
def test_answers_without_torch_transformers_or_streamlit(arguments, repo):
    script = ("import sys; from bastion.cli import main; status = main(sys.argv[1:]); "
              "heavy = {'torch', 'transformers', 'streamlit', 'scipy'} & set(sys.modules); sys.exit(status or (7 if heavy else 0))")
    done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=repo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout and done.stderr == ""


def test_the_module_runs_and_hands_on_the_exit_status(repo):
    done = subprocess.run([sys.executable, "-m", "bastion", "generate"], cwd=repo, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1


def test_every_option_of_every_command_says_what_it_does():
    import click

    from bastion.cli import cli

    def options(command):
        yield from (parameter for parameter in command.params if isinstance(parameter, click.Option))
        for child in getattr(command, "commands", {}).values():
            yield from options(child)

    found = list(options(cli))
    assert len(found) > 40
    assert [option.opts for option in found if not option.help] == []
    assert set(cli.commands) == {"generate", "compare", "calibrate", "bench", "train", "runs", "fetch", "doctor", "app"}


@pytest.mark.parametrize(("arguments", "words"), [
    (["nope"], "No such command 'nope'"),
    (["generate", "--bogus"], "No such option '--bogus'"),
    (["generate"], "exactly one of --prompt, --prompt-file and --prompt-ids (none given)"),
    (["generate", "--prompt", "x", "--prompt-ids", "1"], "(--prompt and --prompt-ids given)"),
    (["generate", "--prompt", " \n"], "The prompt is empty"),
    (["generate", "--prompt-ids", "1,x"], "--prompt-ids takes token ids"),
    (["generate", "--prompt-ids", "1,-2"], "--prompt-ids takes token ids"),
    (["generate", "--prompt-ids", ","], "--prompt-ids takes token ids"),
    (["generate", "--prompt-ids", "9" * 5000], "--prompt-ids takes token ids"),
    (["generate", "--prompt-file", "no/such/file"], "no/such/file cannot be read"),
    (["generate", "--prompt", "x", "--stop-token-ids", "two"], "--stop-token-ids takes token ids"),
    (["generate", "--prompt", "x", "--temperature", "-1"], "--temperature"),
    (["generate", "--prompt", "x", "--temperature", "nan"], "--temperature"),
    (["generate", "--prompt", "x", "--temperature", "inf"], "--temperature"),
    (["generate", "--prompt", "x", "--top-p", "0"], "--top-p"),
    (["generate", "--prompt", "x", "--max-new-tokens", "0"], "--max-new-tokens"),
    (["generate", "--prompt", "x", "--seed", "-1"], "--seed"),
    (["generate", "--prompt", "x", "--method", "nope"], "There is no method 'nope'"),
    (["generate", "--prompt", "x", "--method", "ddtree:0"], "ddtree:16"),
    (["generate", "--prompt", "x", "--method", "small-lm:0"], "small-lm:4,2,2,1"),
    (["generate", "--prompt", "x", "--pair", "a", "--target", "b"], "--pair or --target, not both"),
    (["generate", "--prompt", "x", "--drafter", "b"], "--drafter needs --target"),
    (["generate", "--prompt", "x", "--target", "nowhere"], "There is no folder 'nowhere'"),
    (["generate", "--prompt", "x", "--json", "no/such/folder/x.json"], "there is no folder"),
    (["generate", "--prompt", "x", "--json", "."], "is a folder"),
    (["generate", "--prompt", "x", "--json", ""], "names no file"),
    (["train", "--prompts", "nowhere.jsonl", "--out", "drafter"], "There is no file nowhere.jsonl"),
    *[(["train", "--prompts", "x", "--out", "drafter", option, "nan"], option)
      for option in ("--minutes", "--gather-minutes", "--evaluate-every", "--learning-rate")],
    (["compare", "--methods", "ar"], "--prompts"),
    (["compare", "--prompts", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    (["runs", "show", "../../etc"], "run"),
    (["runs", "show", "20260101-000000-aaaaaa"], "There is no run"),
    (["runs", "delete", "20260101-000000-aaaaaa"], "There is no run"),
    (["runs", "export", "20260101-000000-aaaaaa", "x.zip"], "There is no run"),
    (["runs", "import", "nowhere.zip"], "nowhere.zip"),
    (["bench", "--sets", "nope"], "There is no prompt set 'nope'"),
    (["bench", "--sets", "nowhere.jsonl"], "There is no file nowhere.jsonl"),
    (["bench", "--methods", "small-lm:x"], "small-lm:16"),
    (["bench", "--temperatures", "warm"], "temperatures as numbers"),
    (["bench", "--temperatures", "nan"], "temperatures as numbers"),
    (["bench", "--limit", "0"], "--limit"),
    (["bench", "--latex", "no/such/folder/x.tex"], "there is no folder"),
    (["doctor", "--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
    (["doctor", "--tests", "mask,dtype"], "no test named dtype"),
])
def test_a_mistake_is_one_line_and_exit_status_2(capsys, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in refusal(capsys, *arguments)
    assert not list(tmp_path.iterdir())  # a mistake leaves nothing behind


def test_mistakes_that_only_the_model_knows(capsys, tiny, target_only):
    assert "outside the vocabulary" in refusal(capsys, "generate", "--prompt-ids", str(VOCABULARY), "--method", "ar", *tiny)
    assert "takes 255 at most" in refusal(capsys, "generate", "--prompt", "long " * 100, "--method", "ar", *tiny)
    assert "needs a drafter" in refusal(capsys, "generate", "--prompt", "x", "--method", "dflash", *target_only)
    assert "number type 'float3'" in refusal(capsys, "generate", "--prompt", "x", *target_only[:-1], "float3")


def test_a_prompt_file_that_is_not_text(capsys, tmp_path):
    (tmp_path / "raw").write_bytes(b"abc\xff")
    assert "not UTF-8 text (byte 3)" in refusal(capsys, "generate", "--prompt-file", str(tmp_path / "raw"))


def test_app_starts_the_pages_and_hands_on_their_exit_status(monkeypatch, repo):
    started = []

    def run(command, cwd, check):
        started.append((command, cwd))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", run)
    assert main(["app", "--port", "8600", "--headless"]) == 3
    ((command, cwd),) = started
    assert command == [sys.executable, "-m", "streamlit", "run", str(repo / "app.py"), "--server.port=8600", "--server.headless=true"]
    assert cwd == repo and (repo / "app.py").is_file()


def test_stopping_is_not_an_error_of_the_person(capsys, monkeypatch):
    def stop(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("bastion.models.fetch.fetch_default", stop)
    assert main(["fetch"]) == 130
    assert capsys.readouterr().err.strip() == "bastion: stopped"


def test_a_reader_that_goes_away_ends_the_command_in_silence(repo):
    script = "import sys; from bastion.cli import main; sys.stdin.read(); sys.exit(main(['generate', '--help']))"
    process = subprocess.Popen([sys.executable, "-c", script], cwd=repo, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    _, errors = process.communicate(b"", timeout=60)
    assert errors == b"" and process.returncode == 1


# ---- generate -----------------------------------------------------------------------------------

def test_generate_writes_the_designed_object(capsys, tiny):
    got = json_of(capsys, "generate", "--prompt", "hello", "--method", "ddtree:8", "--max-new-tokens", "20", *tiny)
    assert DESIGNED <= got.keys()
    assert got["method"] == "ddtree:8" and got["dtype"] == "float32" and got["temperature"] == 0
    prefill, *steps = got["steps"]
    assert prefill["kind"] == "prefill" and all(DESIGNED_STEP <= step.keys() and step["kind"] == "decode" for step in steps)
    assert got["output_ids"] == [token for step in got["steps"] for token in step["emitted"]]
    assert got["acceptance_lengths"] == [len(step["emitted"]) for step in steps]
    assert got["tau"] == pytest.approx(sum(got["acceptance_lengths"]) / len(steps))
    assert got["tokens_per_second"] == pytest.approx(sum(got["acceptance_lengths"]) / got["seconds_decode"])
    assert got["seconds_decode"] == pytest.approx(sum(sum(step["seconds"].values()) for step in steps))
    assert len(got["output_ids"]) == 20 or got["output_ids"][-1] == STOP
    assert all(step["nodes"] == len(step["token_ids"]) == len(step["parents"]) <= 9 for step in steps)


def test_all_methods_write_the_same_text(capsys, tiny):
    outputs = {method: json_of(capsys, "generate", "--prompt", "hello", "--method", method, "--max-new-tokens", "24", *tiny)
               for method in ("ar", "dflash", "ddtree:16", "bastion")}
    assert len({tuple(output["output_ids"]) for output in outputs.values()}) == 1
    assert len({output["text"] for output in outputs.values()}) == 1
    assert all(step["predicted_verify_seconds"] > 0 for step in outputs["bastion"]["steps"][1:])


def test_generate_streams_the_text_alone(capsys, tiny):
    arguments = ["generate", "--prompt", "hello", "--method", "ar", "--max-new-tokens", "20", *tiny]
    expected = json_of(capsys, *arguments)["text"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == expected + "\n"
    assert "tokens" in captured.err and "tau 1.00" in captured.err


def test_generate_writes_a_json_file_beside_the_text(capsys, tiny, tmp_path):
    file = tmp_path / "out.json"
    assert main(["generate", "--prompt-ids", "1,70,71", "--method", "ar", "--max-new-tokens", "5", "--json", str(file), *tiny]) == 0
    got = json.loads(file.read_text())
    assert got["prompt_ids"] == [1, 70, 71] and capsys.readouterr().out == got["text"] + "\n"
    assert os.listdir(tmp_path) == ["out.json"]


def test_prompts_come_from_files_and_standard_input_alike(capsys, tiny, tmp_path, monkeypatch):
    (tmp_path / "prompt.txt").write_text("héllo\n", encoding="utf-8")
    arguments = ["--method", "ar", "--max-new-tokens", "4", *tiny]
    direct = json_of(capsys, "generate", "--prompt", "héllo\n", *arguments)
    assert json_of(capsys, "generate", "--prompt-file", str(tmp_path / "prompt.txt"), *arguments)["output_ids"] == direct["output_ids"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("héllo\n".encode()), encoding="ascii"))   # bytes, whatever the locale says
    assert json_of(capsys, "generate", "--prompt-file", "-", *arguments)["prompt_ids"] == direct["prompt_ids"]


def test_sampling_follows_the_seed_and_stop_ids_end_the_output(capsys, tiny):
    arguments = ["generate", "--prompt", "hello", "--method", "ddtree:8", "--temperature", "1", "--max-new-tokens", "16", *tiny]
    one, again, other = (json_of(capsys, *arguments, "--seed", seed)["output_ids"] for seed in ("1", "1", "2"))
    assert one == again != other
    stop = one[3]
    cut = json_of(capsys, *arguments, "--seed", "1", "--stop-token-ids", str(stop))
    assert cut["output_ids"] == one[:one.index(stop) + 1] and cut["finish_reason"] == "stop"


# ---- runs ---------------------------------------------------------------------------------------

def test_a_saved_run_is_listed_shown_exported_imported_and_deleted(capsys, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    assert json_of(capsys, "runs") == {"runs": []}
    saved = json_of(capsys, "generate", "--prompt", "hello", "--method", "ddtree:8", "--max-new-tokens", "12", "--save", *tiny)
    run_id = saved["id"]
    (summary,) = json_of(capsys, "runs", "list")["runs"]
    assert summary["id"] == run_id and summary["method"] == "ddtree:8" and summary["tau"] == pytest.approx(saved["tau"])
    assert json_of(capsys, "runs", "show", run_id) == saved
    assert main(["runs", "show", run_id]) == 0
    shown = capsys.readouterr().out
    assert saved["text"] in shown and "ddtree:8" in shown
    file = tmp_path / "run.zip"
    assert main(["runs", "export", run_id, str(file)]) == 0
    capsys.readouterr()
    for nowhere in (tmp_path, tmp_path / "no" / "such" / "folder.zip"):
        assert "cannot be written" in refusal(capsys, "runs", "export", run_id, str(nowhere))
    assert "run.json" in " ".join(zipfile.ZipFile(file).namelist())
    drawn = tmp_path / "tree.graphml"
    assert main(["runs", "graph", run_id, "1", str(drawn)]) == 0
    assert drawn.read_text().count("<node id=") == saved["steps"][1]["nodes"]
    capsys.readouterr()
    assert "there is no step 99" in refusal(capsys, "runs", "graph", run_id, "99", str(drawn))
    assert main(["runs", "delete", run_id]) == 0
    assert json_of_last(capsys, "runs") == {"runs": []}
    assert json_of(capsys, "runs", "import", str(file)) == {"id": run_id}
    assert json_of(capsys, "runs", "show", run_id) == saved
    assert main(["runs"]) == 0
    assert run_id in capsys.readouterr().out


def json_of_last(capsys, *arguments: str) -> dict:
    """Like `json_of`, after commands whose words are of no interest."""
    capsys.readouterr()
    return json_of(capsys, *arguments)


# ---- compare, calibrate, fetch ------------------------------------------------------------------

def test_compare_shows_and_writes_rows(capsys, tiny, tmp_path):
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": words}) + "\n" for words in ("one", "two", "three")))
    arguments = ["compare", "--prompts", str(prompts), "--limit", "2", "--methods", "ar,dflash,ddtree:8,bastion", "--max-new-tokens", "12", *tiny]
    rows = json_of(capsys, *arguments)["rows"]
    assert [row["method"] for row in rows] == ["ar", "dflash", "ddtree:8", "bastion"]
    for row in rows:
        assert {"method", "prompts", "tau", "tokens_per_second", "speedup", "nodes_mean", "identical_to_ar"} <= row.keys()
        assert row["prompts"] == row["identical_to_ar"] == 2 and row["differences"] == []
    assert rows[0]["speedup"] == rows[0]["tau"] == rows[0]["nodes_mean"] == 1.0
    assert rows[2]["nodes_mean"] > 1
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["method", "prompts", "set", "tau", "tokens/s", "speedup", "nodes", "same", "as", "ar"]
    assert lines[3].startswith("ar ") and lines[3].endswith("2 of 2") and lines[6].startswith("bastion ")


def test_compare_names_a_method_that_this_pair_cannot_run_and_writes_markdown(capsys, tiny, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name}) + "\n")
    arguments = ["compare", "--prompts", str(tmp_path / "one.jsonl"), "--prompts", str(tmp_path / "two.jsonl"), "--methods", "ar,eagle3:4,ngram:4",
                 "--max-new-tokens", "6", "--repeats", "2", "--markdown", str(tmp_path / "table.md"), *tiny]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "eagle3:4 was not measured: The method eagle3:4 needs an EAGLE-3 head" in out and "mean of 2" in out
    rows = (tmp_path / "table.md").read_text().splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| `ar`", "| `eagle3:4`", "| `ngram:4`"]
    assert "not measured: " in rows[3] and rows[4].endswith("2 of 2 |") and rows[2].split(" | ")[1:4] == ["1.00", "1.00", "1.00x"]
    assert "there is no folder" in refusal(capsys, *arguments[:-len(tiny)], "--markdown", "no/such/x.md", *tiny)


def test_calibrate_prints_both_errors_and_where_the_peaks_come_from(capsys, tiny):
    got = json_of(capsys, "calibrate", "--quick", *tiny)
    assert got["peaks_source"] == "measured" and got["peaks"]["flops_per_second"] > 0
    assert got["raw_rmse"] > 0 and got["calibrated_rmse"] > 0 and any(got["held_out"]) and not all(got["held_out"])
    assert main(["calibrate", "--quick", *tiny]) == 0
    out = capsys.readouterr().out
    assert "raw RMSE" in out and "fitted RMSE" in out and "(measured)" in out and "held out" in out


def test_fetch_says_where_the_model_is(capsys, default_model):
    assert main(["fetch"]) == 0
    assert str(default_model) in capsys.readouterr().out
    assert json_of(capsys, "fetch")["folder"] == str(default_model)
    assert "There is no file nowhere" in refusal(capsys, "fetch", "--from", "nowhere")


# ---- the default pair ---------------------------------------------------------------------------

def test_the_default_pair_answers_alike_with_and_without_trees(capsys, default_model, calibrated):
    arguments = ["generate", "--prompt", SHEEP, "--max-new-tokens", "48", "--dtype", "float32"]
    tree, plain = (json_of(capsys, *arguments, "--method", method) for method in ("bastion", "ar"))
    assert tree["text"] == plain["text"] and "22" in plain["text"]
    assert tree["pair"] == "smollm2-135m" and tree["tau"] > 1.2
