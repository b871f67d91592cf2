"""A benchmark's folder: rows that come back as they were, torn files, damage, locks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.errors import UserError
from bastion.records.benchmark_rows import BenchmarkRow, Cell, parse_rows, row_of_steps
from bastion.records.benchmark_store import RESULTS, BenchmarkPrompt, BenchmarkStore

from tests.bench_decoder import step

ROOT = Path(__file__).resolve().parents[1]
REQUEST = {"methods": ["ar", "bastion"], "temperatures": [0.0], "sets": ["s"], "limit": None, "max_new_tokens": 8, "seed": 0,
           "keep_runs": False, "pair": {}}
PROMPTS = [BenchmarkPrompt("s", "a", ("One.",)), BenchmarkPrompt("s", "b", ("Two.", "Three."))]

texts = st.text(max_size=12)
whole = st.lists(st.integers(0, 2**40), max_size=5).map(tuple)
real = st.floats(0, 1e6)
rows = st.builds(BenchmarkRow, prompt_set=texts, prompt=texts, turn=st.integers(0, 9), temperature=real, method=texts, ids=whole, lengths=whole,
                 nodes=whole, surrogates=st.lists(real, max_size=5).map(tuple), walked=whole, gaps=st.lists(real, max_size=5).map(tuple),
                 prefill=real, draft=real, build=real, verify=real, commit=real, predicted_verify=st.none() | real, wall=real,
                 seed=st.integers(0, 2**63 - 1), finish_reason=texts, run=texts, at=texts, skipped=texts)


@pytest.fixture
def store(tmp_path):
    return BenchmarkStore(tmp_path)


@pytest.fixture
def bench_id(store):
    return store.create({"request": REQUEST, "key": "k", "sessions": []}, PROMPTS)


def row(prompt: str = "a", turn: int = 0, method: str = "ar", **more) -> BenchmarkRow:
    return BenchmarkRow("s", prompt, turn, 0.0, method, **more)


@given(st.lists(rows, max_size=6), st.data())
def test_a_file_cut_anywhere_gives_its_whole_lines_and_no_more(written, data):
    """Whatever a kill leaves of the file: the rows whose newline is there, as they were written."""
    lines = [one.line() for one in written]
    raw = b"".join(lines)
    cut = data.draw(st.integers(0, len(raw)))
    kept, size = parse_rows(raw[:cut], "results.jsonl")
    ends = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
    expected = max(n for n, end in enumerate(ends) if end <= cut)
    assert kept == written[:expected] and size == ends[expected]


@given(rows)
def test_a_row_is_one_line_of_strict_json(one):
    line = one.line()
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    json.loads(line, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("line", [b"not json", b"[]", b"{}", b'{"prompt_set": 1}', b"null", b"[" * 5000,
                                  BenchmarkRow("s", "a", 0, 0.0, "ar").line().strip().replace(b'"ids":[]', b'"ids":["x"]'),
                                  BenchmarkRow("s", "a", 0, 0.0, "ar").line().strip().replace(b'"turn":0', b'"turn":true')])
def test_a_whole_line_that_is_no_row_is_named(line):
    with pytest.raises(UserError, match="line 2 is damaged"):
        parse_rows(row().line() + line + b"\n", "results.jsonl")


def test_a_row_holds_sums_and_lists_of_its_steps():
    steps = [step(0, "prefill", [5], 0, 2.0), step(1, "decode", [6, 7], 4, 0.4), step(2, "decode", [8], 4, 0.8)]
    one = row_of_steps(Cell("s", "a", 0, 0.0, "ar"), steps, keep_gaps=True, seed=3)
    assert (one.ids, one.lengths, one.nodes, one.walked) == ((5, 6, 7, 8), (2, 1), (4, 4), (2, 1))
    assert one.tokens == 3 and one.seconds == pytest.approx(1.2) and one.prefill == 2.0 and one.draft == pytest.approx(0.3)
    assert one.gaps == (0.5,) * 4 and one.predicted_verify is None and one.seed == 3
    assert row_of_steps(Cell("s", "a", 0, 0.0, "x"), steps, keep_gaps=False).gaps == ()


@given(st.integers(0, 400))
def test_writing_goes_on_behind_the_last_whole_line(tmp_path_factory, torn):
    store = BenchmarkStore(tmp_path_factory.mktemp("bench"))
    bench_id = store.create({"request": REQUEST, "key": "k", "sessions": []}, PROMPTS)
    with store.writer(bench_id) as writer:
        writer.append(row())
    tail = row("b", ids=tuple(range(80))).line()[:-1][:torn]
    with open(store.root / bench_id / RESULTS, "ab") as file:
        file.write(tail)
    assert store.open(bench_id).rows == (row(),)
    with store.writer(bench_id) as writer:
        writer.append(row(method="bastion"))
    assert store.open(bench_id).rows == (row(), row(method="bastion"))
    assert (store.root / bench_id / RESULTS).read_bytes() == row().line() + row(method="bastion").line()


def test_a_benchmark_knows_what_it_expects_and_what_is_done(store, bench_id):
    benchmark = store.open(bench_id)
    assert [tuple(cell) for cell in benchmark.cells()] == [
        ("s", "a", 0, 0.0, "ar"), ("s", "a", 0, 0.0, "bastion"), ("s", "b", 0, 0.0, "ar"), ("s", "b", 0, 0.0, "bastion"),
        ("s", "b", 1, 0.0, "ar"), ("s", "b", 1, 0.0, "bastion")]
    assert (benchmark.total, benchmark.done, benchmark.finished, benchmark.prompts) == (6, 0, False, tuple(PROMPTS))
    with store.writer(bench_id) as writer:
        for cell in benchmark.cells():
            writer.append(BenchmarkRow(*cell))
        assert store.open(bench_id).held and store.list()[0].held
    (summary,) = store.list()
    assert summary.finished and not summary.held and (summary.done, summary.total, summary.sets) == (6, 6, ("s",))


def test_a_result_written_twice_counts_once(store, bench_id):
    with store.writer(bench_id) as writer:
        writer.append(row(ids=(1,)))
        writer.append(row(ids=(2,)))
    assert store.open(bench_id).rows == (row(ids=(1,)),)


def test_one_writer_at_a_time_in_this_process_and_another(store, bench_id):
    with store.writer(bench_id), pytest.raises(UserError, match="at work in another process"):
        store.writer(bench_id)
    script = ("import sys; from bastion.records.benchmark_store import BenchmarkStore\n"
              f"w = BenchmarkStore({str(store.root)!r}).writer({bench_id!r}); print('held', flush=True); sys.stdin.read()")
    other = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="at work in another process"):
            store.writer(bench_id)
        with pytest.raises(UserError, match="at work; stop it"):
            store.delete(bench_id)
    finally:
        other.kill()
        other.wait(30)
        other.stdin.close()
        other.stdout.close()
    store.writer(bench_id).__exit__()   # a killed process lets go


def test_the_newest_unfinished_benchmark_of_a_request_is_found(store):
    assert store.find("k") is None
    first = store.create({"request": REQUEST, "key": "k", "sessions": []}, PROMPTS, "20260101-000000-aaaaaa")
    assert store.find("k").id == first and store.find("other") is None
    with store.writer(first) as writer:
        for cell in store.open(first).cells():
            writer.append(BenchmarkRow(*cell))
    second = store.create({"request": REQUEST, "key": "k", "sessions": []}, PROMPTS, "20250101-000000-bbbbbb")
    assert store.find("k").id == second
    store.delete(second)
    assert store.find("k").id == first and [one.id for one in store.list()] == [first]


@pytest.mark.parametrize(("name", "content"), [
    ("bench.json", b"{"), ("bench.json", b"[]"), ("bench.json", b"{}"), ("prompts.jsonl", b"[]\n"), ("prompts.jsonl", b"nothing\n"),
    ("bench.json", None), ("prompts.jsonl", None)])
def test_a_damaged_benchmark_is_one_sentence_and_is_not_listed_when_it_cannot_be(store, bench_id, name, content):
    file = store.root / bench_id / name
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(UserError):
        store.open(bench_id)
    assert name == "prompts.jsonl" or store.list() == []


def test_a_newer_schema_and_strange_ids_are_refused(store, bench_id):
    file = store.root / bench_id / "bench.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema_version": 99}))
    with pytest.raises(UserError, match="newer version"):
        store.open(bench_id)
    for strange in ("../x", "", "a" * 80, "nothing-here"):
        with pytest.raises(UserError):
            store.open(strange)
    assert not list(store.root.glob(".*"))
