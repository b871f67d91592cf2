"""Running a benchmark with a counting decoder: order, resume, seeds, turns, skipped prompts, kept runs, notes."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.errors import UserError
from bastion.jobs.benchmark import Pace, find_or_create, run_benchmark, session_notes
from bastion.jobs.benchmark_request import BenchmarkRequest, prompt_seed, split_temperatures
from bastion.jobs.benchmark_runs import RunKeeper, bytes_per_token
from bastion.records import RunStore
from bastion.records.benchmark_store import RESULTS, BenchmarkStore

from tests.bench_decoder import CountingDecoder

METHODS = ("ar", "dflash", "ddtree:16", "bastion")


class Killed(Exception):
    """Stands for a process that is gone: nothing in the program catches it."""


def quiet(words, share, left):
    pass


def prompts_file(folder, *prompts, name="mine"):
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(p if isinstance(p, dict) else {"prompt": p}) + "\n" for p in prompts))
    return str(file)


def asked(*sets, methods=METHODS, known=lambda name: name, **more):
    return BenchmarkRequest(sets=sets, methods=tuple(methods), max_new_tokens=more.pop("max_new_tokens", 10), **more).check(known)


@pytest.fixture
def store(tmp_path):
    return BenchmarkStore(tmp_path / "benchmarks")


def begun(store, request):
    return find_or_create(request, store)[0]


def test_every_prompt_is_decoded_by_every_method_before_the_next_and_the_order_turns(tmp_path, store):
    decoder = CountingDecoder()
    request = asked(prompts_file(tmp_path, "a", "b", "c"), methods=("ar", "dflash", "bastion"))
    done = run_benchmark(begun(store, request), store, decoder, quiet)
    assert [(words, method) for words, method, _, _ in decoder.asked] == [
        ("a", "ar"), ("a", "dflash"), ("a", "bastion"), ("b", "dflash"), ("b", "bastion"), ("b", "ar"),
        ("c", "bastion"), ("c", "ar"), ("c", "dflash")]
    assert done.finished and len(done.rows) == 9 and not done.held


def test_plain_decoding_always_runs_and_names_come_once(tmp_path):
    request = asked(prompts_file(tmp_path, "a"), methods=("bastion", "bastion", "dflash"))
    assert request.methods == ("ar", "bastion", "dflash")
    assert asked(prompts_file(tmp_path, "a"), methods=("dflash", "ar")).methods == ("dflash", "ar")


def test_a_conversation_goes_on_with_plain_decodings_answers(tmp_path, store):
    decoder = CountingDecoder()
    request = asked(prompts_file(tmp_path, {"turns": ["first", "second"]}), methods=("ar", "bastion"))
    done = run_benchmark(begun(store, request), store, decoder, quiet)
    answer = next(row for row in done.rows if row.method == "ar" and row.turn == 0)
    assert decoder.heard[-1] == decoder.heard[-2] == [
        {"role": "user", "content": "first"}, {"role": "assistant", "content": decoder.text(answer.ids)}, {"role": "user", "content": "second"}]
    assert [(row.turn, row.method) for row in done.rows] == [(0, "ar"), (0, "bastion"), (1, "ar"), (1, "bastion")]


@pytest.mark.parametrize("at", range(1, 14))
def test_wherever_it_is_killed_it_goes_on_and_repeats_nothing(tmp_path, store, at):
    """Two prompts, one of two turns, at two temperatures: stopped before each decode in turn, then finished."""
    request = asked(prompts_file(tmp_path, "a", {"turns": ["b", "c"]}), methods=("ar", "bastion"), temperatures=(0.0, 1.0))
    whole = run_benchmark(begun(store, request), store, CountingDecoder(), quiet)
    assert whole.total == 12
    other = BenchmarkStore(tmp_path / "again")
    bench_id = begun(other, request)

    def die(count):
        if count == at:
            raise Killed

    first = CountingDecoder(before=die)
    if at <= whole.total:
        with pytest.raises(Killed):
            run_benchmark(bench_id, other, first, quiet)
        assert other.open(bench_id).done == at - 1
        first.asked.pop()   # the one it died in
    else:
        run_benchmark(bench_id, other, first, quiet)
    with open(other.root / bench_id / RESULTS, "ab") as file:
        file.write(b'{"prompt_set": "mi')
    assert find_or_create(request, other) == (bench_id, True)
    second = CountingDecoder()
    done = run_benchmark(bench_id, other, second, quiet)
    assert done.finished and first.asked + second.asked == _in_order(whole)
    assert {row.cell: (row.ids, row.lengths, row.seed) for row in done.rows} == {row.cell: (row.ids, row.lengths, row.seed) for row in whole.rows}


def _in_order(benchmark):
    words = {prompt.id: prompt.turns for prompt in benchmark.prompts}
    return [(words[row.prompt][row.turn], row.method, row.temperature, row.seed) for row in benchmark.rows]


def test_a_finished_one_is_found_again_and_another_is_begun_only_when_asked(tmp_path, store):
    request = asked(prompts_file(tmp_path, "a"), methods=("ar",))
    bench_id = begun(store, request)
    assert find_or_create(request, store, again=True) == (bench_id, True)   # unfinished: taken up
    run_benchmark(bench_id, store, CountingDecoder(), quiet)
    assert find_or_create(request, store) == (bench_id, True)
    decoder = CountingDecoder()
    run_benchmark(bench_id, store, decoder, quiet)
    assert decoder.asked == []
    fresh, found = find_or_create(request, store, again=True)
    assert not found and fresh != bench_id


def test_another_request_or_another_text_in_the_file_is_another_benchmark(tmp_path):
    file = prompts_file(tmp_path, "a")
    keys = {asked(file, methods=("ar",), **more).key for more in ({}, {"limit": 3}, {"seed": 1}, {"max_new_tokens": 9}, {"temperatures": (0.5,)},
                                                                  {"keep_runs": True})}
    assert len(keys) == 6
    before = asked(file, methods=("ar",)).key
    prompts_file(tmp_path, "b")
    assert asked(file, methods=("ar",)).key != before
    again = asked(file, methods=("ar",))
    assert BenchmarkRequest.from_json(json.loads(json.dumps(again.to_json()))).key == again.key


def test_seeds_follow_from_the_prompt_and_not_from_its_place(tmp_path, store):
    long = run_benchmark(begun(store, asked(prompts_file(tmp_path, {"id": "x", "prompt": "a"}, {"id": "y", "prompt": "b"}), temperatures=(1.0,))),
                         store, CountingDecoder(), quiet)
    short = run_benchmark(begun(store, asked(prompts_file(tmp_path, {"id": "y", "prompt": "b"}), temperatures=(1.0,))),
                          store, CountingDecoder(), quiet)
    ids = {row.method: row.ids for row in short.rows}
    assert ids == {row.method: row.ids for row in long.rows if row.prompt == "y"}
    assert len({row.seed for row in long.rows if row.prompt == "y"}) == 1
    assert len({prompt_seed(s, "set", p, t) for s, p, t in itertools.product((0, 1), ("x", "y"), (0, 1))}) == 8


@given(st.integers(0, 2**63 - 1), st.text(), st.text(), st.integers(0, 99))
def test_a_seed_is_one_that_decoding_takes(seed, name, prompt, turn):
    assert 0 <= prompt_seed(seed, name, prompt, turn) < 2**63


def test_a_prompt_that_does_not_fit_is_left_out_and_said(tmp_path, store):
    decoder = CountingDecoder()
    request = asked(prompts_file(tmp_path, "x" * 401, "b"), methods=("ar", "bastion"))
    done = run_benchmark(begun(store, request), store, decoder, quiet)
    assert done.finished and [(row.prompt, bool(row.skipped)) for row in done.rows] == [("1", True), ("1", True), ("2", False), ("2", False)]
    assert "shorten it" in done.rows[0].skipped and [words for words, *_ in decoder.asked] == ["b", "b"]


def test_the_calibration_it_began_with_is_used_throughout_and_a_newer_one_is_said(tmp_path, store):
    request = asked(prompts_file(tmp_path, "a", "b"), methods=("ar", "bastion"))
    bench_id = begun(store, request)

    def stop(count):
        if count == 2:
            raise Killed

    with pytest.raises(Killed):
        run_benchmark(bench_id, store, CountingDecoder(before=stop, made_at="2026-01-01T08:00:00+00:00"), quiet)
    assert session_notes(store.open(bench_id).info) == []
    said = []
    later = CountingDecoder(made_at="2026-02-02T09:00:00+00:00")
    done = run_benchmark(bench_id, store, later, lambda words, share, left: said.append(words))
    assert later.pinned == {"made_at": "2026-01-01T08:00:00+00:00"}
    note = "The device was calibrated again on 2026-02-02 09:00 after this benchmark began; all of it uses the calibration of 2026-01-01 08:00."
    assert note in said and session_notes(done.info) == [note] and len(done.info["sessions"]) == 2


def test_another_device_does_not_go_on_with_it(tmp_path, store):
    request = asked(prompts_file(tmp_path, "a", "b"), methods=("ar",))
    bench_id = begun(store, request)

    def stop(count):
        if count == 2:
            raise Killed

    with pytest.raises(Killed):
        run_benchmark(bench_id, store, CountingDecoder(before=stop), quiet)
    with pytest.raises(UserError, match="begun with device counter, and here it is other"):
        run_benchmark(bench_id, store, CountingDecoder(device="other"), quiet)


def test_progress_says_where_it_is_and_how_long_it_takes(tmp_path, store):
    heard = []
    request = asked(prompts_file(tmp_path, "a", "b"), methods=("ar", "dflash"))
    done = run_benchmark(begun(store, request), store, CountingDecoder(), lambda words, share, left: heard.append((words, share, left)))
    shares = [share for _, share, _ in heard if share is not None]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    assert any(words == "mine, prompt 2, ar" for words, _, _ in heard)
    lefts = [left for _, share, left in heard if share is not None and share > 0.25]
    assert all(left is not None and left >= 0 for left in lefts) and Pace(done).seconds_left() == 0


def test_prompts_of_one_id_are_told_apart(tmp_path, store):
    request = asked(prompts_file(tmp_path, {"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}), methods=("ar",))
    assert [p.id for p in store.open(begun(store, request)).prompts] == ["x", "x (2)"]


def test_kept_runs_belong_to_the_benchmark_and_a_cut_one_is_replaced(tmp_path, store):
    runs = RunStore(tmp_path / "runs")
    request = asked(prompts_file(tmp_path, "a", {"id": "two", "turns": ["b", "c"]}), methods=("ar", "bastion"), keep_runs=True)
    bench_id = begun(store, request)
    first = CountingDecoder()
    calls = {"n": 0}

    def die(words, share, left):
        calls["n"] += share is not None
        if calls["n"] == 12:   # inside a decode
            raise Killed

    with pytest.raises(Killed):
        run_benchmark(bench_id, store, first, die, RunKeeper(runs, first))
    second = CountingDecoder()
    done = run_benchmark(bench_id, store, second, quiet, RunKeeper(runs, second))
    saved = {run.id: runs.open(run.id) for run in runs.list()}
    assert sorted(saved) == sorted(row.run for row in done.rows) and all(run.complete for run in saved.values())
    for row in done.rows:
        run = saved[row.run]
        assert tuple(run.output_ids) == row.ids and run.info["method"] == row.method
        assert run.info["calibration"] == {"made_at": "2026-01-01T00:00:00+00:00"} and run.info["pair"] == "counting"
        assert (run.info["prompt_set"], run.info["prompt_id"]) == ("mine", row.prompt)
        assert run.info["group"] == {"kind": "benchmark", "id": bench_id, "turn": row.turn} and run.info["sampling"]["seed"] == row.seed
    (summary,) = {(one.group, one.group_id) for one in runs.list()}
    assert summary == ("benchmark", bench_id)
    size = sum(f.stat().st_size for run in saved for f in (runs.root / run).iterdir())
    assert bytes_per_token(runs) == pytest.approx(size / sum(len(row.ids) for row in done.rows))
    assert bytes_per_token(RunStore(tmp_path / "none")) is None


@pytest.mark.parametrize(("change", "words"), [
    ({"methods": ()}, "at least one method"), ({"temperatures": ()}, "temperatures as numbers"), ({"temperatures": (-1.0,)}, "temperatures as numbers"),
    ({"temperatures": tuple(map(float, range(9)))}, "8 temperatures at most"), ({"methods": [f"m{i}" for i in range(24)]}, "24 methods at most"),
    ({"limit": 0}, "at least 1 prompt"), ({"max_new_tokens": 0}, "new tokens"), ({"seed": -1}, "seed"), ({"sets": ()}, "at least one prompt set")])
def test_a_request_that_cannot_be_run_is_one_sentence(change, words):
    with pytest.raises(UserError, match=words):
        BenchmarkRequest(**{"methods": METHODS, **change}).check(lambda name: name)


@pytest.mark.parametrize("damage", [{}, {"pair": {"nope": 1}}, {"sets": None}, {"temperatures": ["warm"]}])
def test_a_damaged_request_is_one_sentence(damage):
    values = {**BenchmarkRequest().to_json(), **damage} if damage else {}
    with pytest.raises(UserError, match="request of this benchmark is damaged"):
        BenchmarkRequest.from_json(values)


def test_temperatures_from_text():
    assert split_temperatures("0, 1,") == (0.0, 1.0)
    with pytest.raises(UserError, match="temperatures as numbers"):
        split_temperatures("0;1")
