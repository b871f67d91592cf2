"""The Benchmark page as a script, with a decoder that counts: what it starts, shows, resumes, deletes and refuses."""

import json
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import bastion.jobs.job_manager as manager_module
from bastion.jobs import JobManager
from bastion.jobs.benchmark_job import resume_benchmark, start_benchmark
from bastion.jobs.benchmark_plan import plan
from bastion.jobs.benchmark_request import BenchmarkRequest
from bastion.records import RunStore
from bastion.records.benchmark_store import BenchmarkStore
from pages.parts.bench_form import rounded_up

from tests.bench_decoder import CountingDecoder
from tests.counting_engine import CountingEngine

ROOT = Path(__file__).resolve().parents[1]


class Gate:
    """Holds the decoder before its decode number `at` until opened."""

    def __init__(self, at=None):
        import threading
        self.at, self.there, self.go = at, threading.Event(), threading.Event()

    def __call__(self, count):
        if count == self.at:
            self.there.set()
            assert self.go.wait(60)


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def jobs(tmp_path, monkeypatch, gate):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    made = JobManager(CountingEngine(), RunStore(tmp_path / "runs"))
    monkeypatch.setattr(manager_module, "_manager", made)
    monkeypatch.setattr("pages.parts.fetch.model_ready", lambda: True)
    monkeypatch.setattr("bastion.jobs.benchmark_job.make_decoder", lambda pair: CountingDecoder(before=gate))
    yield made
    gate.go.set()
    made.close()


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"id": "one", "prompt": "a"}\n{"id": "two", "turns": ["b", "c"]}\n{"id": "three", "prompt": "d"}\n')
    return str(file)


def page(**query) -> AppTest:
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300)
    for name, value in query.items():
        test.query_params[name.replace("_", "-")] = value
    test.run()
    test.switch_page("pages/benchmark.py")
    for name, value in query.items():
        test.query_params[name.replace("_", "-")] = value
    return test.run()


def button(test, label):
    return next(b for b in test.button if b.label == label)


def words(test):
    return "\n".join(c.value for c in [*test.caption, *test.markdown, *test.error, *test.info, *test.subheader]).replace("\\", "")


def bars(test):
    return "".join(node.proto.text for node in test.main if getattr(node, "type", "") == "progress").replace("\\", "")


def html(test):
    return "\n".join(node.proto.body for node in test.main if getattr(node, "type", "") == "html")


def finished(jobs, bench_id):
    for _ in range(3000):
        if jobs.view(bench_id).final:
            return jobs.view(bench_id)
        time.sleep(0.01)
    raise AssertionError(jobs.view(bench_id))


def request(prompts, **more):
    return BenchmarkRequest(**{"sets": (prompts,), "methods": ("ar", "bastion"), "max_new_tokens": 9, **more})


def test_the_empty_page_says_what_to_do_and_how_much_it_comes_to(jobs):
    test = page()
    assert not test.exception and test.title[0].value == "Benchmark"
    assert "Choose prompt sets and methods, and press Start" in words(test)
    assert "36 decodes of at most 128 tokens" in words(test)   # eight of ours, one of them with two turns, by four methods
    assert not button(test, "Start").disabled


def test_start_runs_what_the_widgets_say_and_the_address_holds_it(jobs, prompts, gate):
    gate.at = 5
    test = page()
    test.multiselect(key="bench-sets").set_value([prompts])
    test.multiselect(key="bench-methods").set_value(["bastion"])
    test.multiselect(key="bench-temperatures").set_value(["0", "1"])
    test.number_input(key="bench-limit").set_value(2)
    test.number_input(key="bench-tokens").set_value(9)
    test.number_input(key="bench-seed").set_value(3)
    test.run()
    assert "12 decodes of at most 9 tokens" in words(test)
    button(test, "Start").click()
    test.run()
    assert gate.there.wait(60)
    bench_id = test.query_params["bench-id"] if isinstance(test.query_params["bench-id"], str) else test.query_params["bench-id"][0]
    asked = BenchmarkStore().open(bench_id).info["request"]
    assert (asked["sets"], asked["methods"], asked["temperatures"], asked["limit"], asked["max_new_tokens"], asked["seed"], asked["keep_runs"]) == (
        [prompts], ["ar", "bastion"], [0.0, 1.0], 2, 9, 3, False)
    test.run()
    assert not test.exception and button(test, "Start").disabled and button(test, "Stop")
    assert '<td data-set="mine" data-method="ar">2 of 6' in html(test)
    button(test, "Stop").click()
    gate.go.set()
    test.run()
    finished(jobs, bench_id)
    test.run()
    assert not test.exception and "Stopped after" in bars(test)
    button(test, "Resume").click()
    test.run()
    finished(jobs, bench_id)
    test.run()
    assert not test.exception and "Finished: 12 of 12 decodes" in words(test) and not button(test, "Start").disabled


def test_the_table_shows_the_rows_and_a_link_opens_it_with_its_settings(jobs, prompts):
    bench_id = start_benchmark(request(prompts))
    finished(jobs, bench_id)
    test = page(bench_id=bench_id)
    rows = BenchmarkStore().open(bench_id).rows

    def speed(method):
        own = [row for row in rows if row.method == method]
        return sum(row.tokens for row in own) / sum(row.seconds for row in own)

    text = html(test)
    assert f'data-field="speedup" class="sum">{speed("bastion") / speed("ar"):.2f}x' in text and "3 of 3" in text
    assert test.multiselect(key="bench-sets").value == [prompts] and test.multiselect(key="bench-methods").value == ["ar", "bastion"]
    assert test.number_input(key="bench-tokens").value == 9 and "Measured: counting on counter" in words(test)
    names = {d.proto.label for d in test.main if getattr(d, "type", "") == "download_button"}
    assert {"Markdown", "LaTeX", "CSV", "JSON"} <= names


def test_the_same_request_shows_the_finished_one_unless_measured_again(jobs, prompts):
    bench_id = start_benchmark(request(prompts))
    finished(jobs, bench_id)
    assert start_benchmark(request(prompts)) == bench_id and resume_benchmark(bench_id) == bench_id
    another = start_benchmark(request(prompts), again=True)
    assert another != bench_id
    finished(jobs, another)
    assert len(BenchmarkStore().list()) == 2


def test_deleting_takes_it_from_the_list_and_the_address(jobs, prompts):
    bench_id = start_benchmark(request(prompts))
    finished(jobs, bench_id)
    test = page(bench_id=bench_id)
    button(test, "Delete for good").click()
    test.run()
    assert not test.exception and BenchmarkStore().list() == [] and "bench-id" not in test.query_params
    assert "press Start" in words(test)


def test_kept_runs_have_their_group_and_their_size_is_said_beforehand(jobs, prompts):
    bench_id = start_benchmark(request(prompts, keep_runs=True))
    finished(jobs, bench_id)
    assert {run.group_id for run in jobs.store.list()} == {bench_id} and len(jobs.store.list()) == 8
    shown = page(bench_id=bench_id)
    links = [node.proto for node in shown.main if getattr(node, "type", "") == "page_link"]
    kept = [row.run for row in BenchmarkStore().open(bench_id).rows if row.method == "bastion"]
    assert not shown.exception and [link.label for link in links] == ["Surrogate against outcome, all 4 kept runs"]
    assert all(run in links[0].query_string for run in kept)
    test = page()
    test.checkbox(key="bench-keep").check()
    test.run()
    said = [line for line in words(test).split("\n") if "runs: about" in line]
    assert len(said) == 1
    for run in jobs.store.list()[2:]:           # other runs come and go: the settings are the same, and so is what they come to
        jobs.store.delete(run.id)
    assert said == [line for line in words(test.run()).split("\n") if "runs: about" in line]


@pytest.mark.parametrize("size, said", [(443_000, 500_000), (423_000, 500_000), (500_000, 500_000), (500_001, 1_000_000), (0.2, 1), (1, 1), (13, 20)])
def test_what_runs_take_is_said_to_its_order_alone(size, said):
    assert rounded_up(size) == said


def test_one_of_a_kind_is_said_in_the_singular(jobs, tmp_path):
    file = tmp_path / "one.jsonl"
    file.write_text('{"id": "one", "prompt": "a"}\n')
    bench_id = start_benchmark(BenchmarkRequest((str(file),), ("ar", "bastion"), max_new_tokens=9, keep_runs=True))
    finished(jobs, bench_id)
    shown = page(bench_id=bench_id)
    labels = [node.proto.label for node in shown.main if getattr(node, "type", "") == "page_link"]
    assert labels == ["Surrogate against outcome, the 1 kept run"]
    alone = start_benchmark(BenchmarkRequest((str(file),), ("ar",), max_new_tokens=9))
    finished(jobs, alone)
    test = page(bench_id=alone)
    listed = [node.proto.label for node in test.get("page_link") if node.proto.page == "benchmark"]
    assert not test.exception and "Finished: 1 of 1 decode" in words(test) and any(label.endswith("1 method") for label in listed)
    assert not re.search(r"\b1 (decodes|methods|runs|prompts)\b", "\n".join([words(test), html(test), *listed]))


def test_a_benchmark_of_another_process_is_shown_and_not_resumed(jobs, prompts, tmp_path):
    bench_id = start_benchmark(request(prompts))
    finished(jobs, bench_id)
    store = BenchmarkStore()
    file = store.root / bench_id / "results.jsonl"
    file.write_bytes(b"\n".join(file.read_bytes().split(b"\n")[:3]) + b"\n")
    jobs._jobs.clear()
    with store.writer(bench_id):
        test = page(bench_id=bench_id)
        assert not test.exception and not [b for b in test.button if b.label == "Resume"]
        assert "At work in another process: 3 of 8 decodes" in bars(test)


@pytest.mark.parametrize("bench_id", ["20260101-000000-abcdef", "../../etc/passwd", "x" * 99])
def test_a_link_to_no_benchmark_is_one_sentence(jobs, bench_id):
    test = page(bench_id=bench_id)
    assert not test.exception and len(test.error) == 1


@pytest.mark.parametrize(("field", "value", "sentence"), [
    ("bench-sets", ["nope"], "There is no prompt set 'nope'"), ("bench-methods", ["nope:3"], "There is no method 'nope'"),
    ("bench-temperatures", ["hot"], "temperatures as numbers"), ("bench-sets", [], "at least one prompt set")])
def test_a_mistake_is_one_sentence_and_starts_nothing(jobs, field, value, sentence):
    test = page()
    test.multiselect(key=field).set_value(value)
    test.run()
    button(test, "Start").click()
    test.run()
    assert not test.exception and [e.value.replace("\\", "") for e in test.error if sentence in e.value.replace("\\", "")]
    assert BenchmarkStore().list() == [] and jobs.waiting() == 0


def test_prompts_that_cannot_be_had_fail_in_one_sentence(jobs, monkeypatch):
    def absent():
        def load(*positional, **named):
            raise ConnectionError("no network")
        return load

    monkeypatch.setattr("bastion.jobs.prompt_sets._datasets", absent)
    bench_id = start_benchmark(BenchmarkRequest(sets=("gsm8k",), methods=("ar",)))
    view = finished(jobs, bench_id)
    assert view.state == "failed" and "could not be fetched (no network)" in view.error
    test = page(bench_id=bench_id)
    assert not test.exception and "could not be fetched" in words(test) and BenchmarkStore().list() == []


def test_a_plan_counts_turns_and_names_what_must_be_fetched(jobs, prompts):
    known = plan(request(prompts, temperatures=(0.0, 1.0), methods=("bastion",)))
    assert (known.turns, known.decodes) == (4, 16) and known.kept_bytes(9, 100.0) == 16 * 9 * 100
    unknown = plan(BenchmarkRequest(sets=("ours", "gsm8k")))
    assert unknown.decodes is None and unknown.to_fetch == ("gsm8k",)


def test_earlier_benchmarks_are_read_without_torch(jobs, prompts, tmp_path):
    bench_id = start_benchmark(request(prompts))
    finished(jobs, bench_id)
    script = textwrap.dedent(f"""
        import importlib.util, sys
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name.split(".")[0] in ("torch", "transformers") else found(name, *a)
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("torch", "transformers", "datasets"):
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Absent())
        from streamlit.testing.v1 import AppTest
        test = AppTest.from_file({str(ROOT / "app.py")!r}, default_timeout=300)
        test.query_params["bench-id"] = {bench_id!r}
        test.run()
        test.switch_page("pages/benchmark.py")
        test.query_params["bench-id"] = {bench_id!r}
        test.run()
        assert not test.exception, test.exception
        assert any("Earlier benchmarks can be read here, not run." in i.value.replace("\\\\", "") for i in test.info), test.info
        assert any("Finished: 8 of 8 decodes" in c.value.replace("\\\\", "") for c in test.caption), test.caption
        assert not [b for b in test.button if b.label in ("Start", "Resume")] and "torch" not in sys.modules
        print("viewed")
    """)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "viewed" in done.stdout, done.stderr[-2000:]


def test_differences_and_several_temperatures_are_shown(jobs, prompts, monkeypatch):
    monkeypatch.setattr("bastion.jobs.benchmark_job.make_decoder", lambda pair: CountingDecoder(apart="bastion"))
    bench_id = start_benchmark(request(prompts, temperatures=(0.0, 1.0)))
    finished(jobs, bench_id)
    test = page(bench_id=bench_id)
    assert not test.exception and [e.label for e in test.expander] == ["Where greedy outputs differ from plain decoding: 4"]
    assert list(test.dataframe[0].value["position"]) == [2] * 4 and "0 of 3" in html(test)
    shown = next(group for group in test.button_group if group.key == "bench-shown")
    shown.set_value("1").run()
    assert not test.exception and "same as ar" not in html(test)
    value = json.loads((BenchmarkStore().root / bench_id / "bench.json").read_text())
    assert value["pair"] == "counting" and len(value["sessions"]) == 1
