"""Prompt sets: published formats against published texts, sampling, the cache, and what is said when one cannot be had."""

import json
import random
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from bastion.errors import UserError
from bastion.jobs import prompt_sets
from bastion.jobs.prompt_files import Conversation, read_prompt_set
from bastion.jobs.prompt_sets import cached_file, expand_sets, format_rows, load_prompt_set, published_sample
from bastion.jobs.prompt_sources import HUB, LONGBENCH, PAPER

ROOT = Path(__file__).resolve().parents[1]
REASON = "\nPlease reason step by step, and put your final answer within \\boxed{}."
# Rows made by hand with the fields the hub's rows have, and the whole prompt the published program makes of each.
FORMATS = [
    ("gsm8k", {"question": "Ann has 3 pens and buys 4. How many has she?", "answer": "#### 7"},
     ["Ann has 3 pens and buys 4. How many has she?\nPlease reason step by step, and put your final answer within \\boxed{}."]),
    ("math500", {"problem": "Find $x$ with $x^2 = {9}$.", "level": 1, "solution": "3"},
     ["Find $x$ with $x^2 = {9}$.\nPlease reason step by step, and put your final answer within \\boxed{}."]),
    ("aime25", {"problem": "Find the sum.", "answer": "70"},
     ["Find the sum.\nPlease reason step by step, and put your final answer within \\boxed{}."]),
    ("humaneval", {"task_id": "HumanEval/0", "prompt": "def one():\n    \"\"\"Return 1.\"\"\"\n", "test": "assert one() == 1"},
     ["Write a solution to the following problem and make sure that it passes the tests:\n```python\n"
      "def one():\n    \"\"\"Return 1.\"\"\"\n\n```"]),
    ("mbpp", {"task_id": 2, "prompt": "Write a function to add two numbers.", "code": "..."}, ["Write a function to add two numbers."]),
    ("mt-bench", {"prompt_id": 1, "category": "writing", "prompt": ["Write a poem.", "Make it shorter."]}, ["Write a poem.", "Make it shorter."]),
    ("alpaca", {"instruction": "Sort these.", "input": "b, a", "output": "a, b"}, ["Sort these.\n\nb, a"]),
    ("qasper", {"context": "A long paper.", "input": "What is it about?", "answers": ["x"]}, ["A long paper.\n\nWhat is it about?"]),
]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_our_set_is_a_mix_from_its_first_four_prompts_on():
    rows = [json.loads(line) for line in prompt_sets.OURS_FILE.read_text(encoding="utf-8").splitlines()]
    assert [set(row) for row in rows] == [{"id", "category", "turns"}] * 24
    assert len({row["id"] for row in rows}) == 24 and all(1 <= len(row["turns"]) <= 2 for row in rows)
    assert len({row["category"] for row in rows[:4]}) == 4 and {len(row["turns"]) for row in rows[:4]} == {1, 2}
    assert {"arithmetic", "code", "chat", "summary", "translation", "json", "list", "extraction", "two-turn"} <= {row["category"] for row in rows}
    loaded = load_prompt_set("ours", 4)
    assert loaded.name == "ours" and [c.turns for c in loaded.conversations] == [tuple(row["turns"]) for row in rows[:4]]


def test_the_sets_are_the_papers_eight_and_seven_of_longbench():
    assert [source.name for source in PAPER] == ["gsm8k", "math500", "aime25", "humaneval", "mbpp", "lcb", "mt-bench", "alpaca"]
    assert len(LONGBENCH) == 7 and all(source.hub == "THUDM/LongBench" for source in LONGBENCH)
    assert expand_sets(["paper-short"]) == [source.name for source in PAPER]
    assert expand_sets(["longbench-qasper", "qasper", "aime2025", "ours"]) == ["qasper", "aime25", "ours"]


@pytest.mark.parametrize(("name", "row", "turns"), FORMATS, ids=[case[0] for case in FORMATS])
def test_a_raw_row_becomes_the_published_prompt(name, row, turns):
    assert format_rows(HUB[name], [row]) == [{"id": f"{name}-0", "turns": turns}]


def test_published_suffixes_word_for_word():
    assert HUB["gsm8k"].format({"question": "1 + 1?"}) == ["1 + 1?" + REASON]
    assert HUB["math500"].format({"problem": "$x$"}) == ["$x$" + REASON]
    assert HUB["aime25"].format({"problem": "", "question": "q"}) == ["q" + REASON]
    assert HUB["alpaca"].format({"instruction": "Sort.", "input": "b a"}) == ["Sort.\n\nb a"]
    assert HUB["alpaca"].format({"instruction": "Sort.", "input": ""}) == ["Sort."]
    assert HUB["qasper"].format({"context": "Long.", "input": "Why?"}) == ["Long.\n\nWhy?"]
    assert HUB["lcb"].format({"question_content": "Add."}) == [
        "Write a complete solution to the following programming problem.\nReturn only the solution code.\n\nAdd."]


class Hub:
    """Stands in for `datasets.load_dataset`; remembers how it was asked."""

    def __init__(self, rows=(), error=None):
        self.rows, self.error, self.calls = list(rows), error, []

    def __call__(self, *positional, **named):
        self.calls.append((positional, named))
        if self.error is not None:
            raise self.error
        return self.rows


def test_a_set_is_asked_for_as_published_and_never_with_remote_code():
    hub = Hub([{"question": f"q{i}"} for i in range(5)])
    loaded = load_prompt_set("gsm8k", load=hub)
    assert hub.calls == [(("openai/gsm8k", "main"), {"split": "test"})]
    assert [c.id for c in loaded.conversations] == [f"gsm8k-{i}" for i in range(5)] and loaded.conversations[2].turns == ("q2" + REASON,)
    for source in HUB.values():
        positional, named = source.load_arguments()
        assert "trust_remote_code" not in named
        if source.files:   # published as a loading script: only its data files are read, by the json builder
            assert positional == ["json"] and named["streaming"] is True


def test_a_fetched_set_needs_no_hub_again_and_a_sample_is_the_published_shuffle():
    rows = [{"question": f"q{i}"} for i in range(40)]
    assert len(load_prompt_set("gsm8k", load=Hub(rows)).conversations) == 40
    gone = Hub(error=ConnectionError("no network"))
    again = load_prompt_set("gsm8k", 7, load=gone)
    random.seed(0)
    expected = list(range(40))
    random.shuffle(expected)
    assert [c.id for c in again.conversations] == [f"gsm8k-{i}" for i in expected[:7]] and not gone.calls
    assert len(load_prompt_set("gsm8k", 40, load=gone).conversations) == 40
    few = tuple(Conversation(str(i), ("x",)) for i in range(3))
    assert published_sample(few, 3) == few == published_sample(few, None)


def test_without_a_network_it_is_one_sentence_that_says_what_works():
    with pytest.raises(UserError) as caught:
        load_prompt_set("gsm8k", load=Hub(error=ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub\nmore lines")))
    words = str(caught.value)
    assert "openai/gsm8k could not be fetched (Couldn't reach" in words and "`ours`" in words and "JSON lines" in words and "fetched before" in words
    assert "more lines" not in words and not cached_file("gsm8k").exists()


@pytest.mark.parametrize("rows", [[{"wrong": 1}], [], [{"question": None}]])
def test_rows_that_are_not_the_known_ones_leave_nothing_in_the_cache(rows):
    with pytest.raises(UserError):
        load_prompt_set("gsm8k", load=Hub(rows))
    assert not cached_file("gsm8k").exists() and not list(cached_file("gsm8k").parent.glob(".*"))


def test_without_the_package_datasets_it_is_one_sentence():
    script = textwrap.dedent("""
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "datasets":
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Absent())
        from bastion.errors import UserError
        from bastion.jobs.prompt_sets import load_prompt_set
        assert len(load_prompt_set("ours").conversations) == 24
        try:
            load_prompt_set("gsm8k")
        except UserError as error:
            print(error)
    """)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "the package `datasets`, which is not installed" in done.stdout and "`ours`" in done.stdout and len(done.stdout.splitlines()) == 1


def test_datasets_itself_reads_a_folder_of_parquet_and_a_zip_of_json_lines(tmp_path, monkeypatch):
    """The real package on local files: the same calls, with the hub's address replaced by a folder's."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "math"
    folder.mkdir()
    pq.write_table(pa.table({"problem": ["$1+1$", "$2+2$"], "answer": ["2", "4"]}), folder / "test.parquet")
    loaded = load_prompt_set("math500", load=lambda hub, split: datasets.load_dataset(
        str(folder), split=split, cache_dir=str(tmp_path / "cache")))
    assert [c.turns for c in loaded.conversations] == [("$1+1$" + REASON,), ("$2+2$" + REASON,)]

    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data/qasper.jsonl", "".join(json.dumps({"input": f"q{i}", "context": "c", "answers": ["a"]}) + "\n" for i in range(3)))

    def local(builder, data_files, split, streaming):
        files = [file.replace("hf://datasets/THUDM/LongBench/data.zip", str(tmp_path / "data.zip")) for file in data_files]
        assert files != data_files
        return datasets.load_dataset(builder, data_files=files, split=split, streaming=streaming, cache_dir=str(tmp_path / "cache"))

    assert [c.turns for c in load_prompt_set("qasper", load=local).conversations] == [("c\n\nq0",), ("c\n\nq1",), ("c\n\nq2",)]


@pytest.mark.parametrize(("names", "words"), [
    (["nope"], "There is no prompt set 'nope'"),
    (["nowhere.jsonl"], "There is no file nowhere.jsonl"),
    ([" ", ""], "at least one prompt set"),
])
def test_names_that_are_none_are_refused(names, words):
    with pytest.raises(UserError, match=words):
        expand_sets(names)


def test_a_file_is_named_by_its_stem_and_two_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.jsonl").write_text('{"prompt": "Count."}\n{"turns": ["One.", "Two."]}\n')
    file = str(tmp_path / "a" / "mine.jsonl")
    loaded = load_prompt_set(*expand_sets([file]))
    assert loaded.name == "mine" and [c.turns for c in loaded.conversations] == [("Count.",), ("One.", "Two.")]
    assert loaded.conversations == read_prompt_set(file).conversations
    with pytest.raises(UserError, match="Two of the prompt sets are called mine"):
        expand_sets([file, str(tmp_path / "b" / "mine.jsonl")])
    (tmp_path / "mean.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(UserError, match="cannot be called mean"):
        expand_sets([str(tmp_path / "mean.jsonl")])


def test_a_fingerprint_changes_with_a_files_text(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "a"}\n')
    before = prompt_sets.fingerprint(str(file))
    file.write_text('{"prompt": "b"}\n')
    assert prompt_sets.fingerprint(str(file)) != before and prompt_sets.fingerprint("gsm8k") != prompt_sets.fingerprint("math500")
