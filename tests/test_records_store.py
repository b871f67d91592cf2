"""A run written step by step comes back exactly, finished or cut short."""

import errno
import json
import os

import pytest

from bastion.errors import UserError
from bastion.records import RunStore
from tests.synthetic_runs import decode, make_info, make_run, same_step, text_of


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path)


def write(store, records, info=None, **options):
    writer = store.create(info or make_info(), text_of=text_of, decode=decode, **options)
    for record in records:
        writer.append(record)
    return writer


def test_a_finished_run_comes_back_exactly(store):
    records = make_run(5, seed=3)
    run_id = write(store, records).finish("length")
    run = store.open(run_id)
    assert run.complete and run.info["finish_reason"] == "length"
    assert len(run.steps) == 6
    assert all(map(same_step, run.steps, records))
    assert run.output_ids == [token for record in records for token in record.emitted]
    assert run.text == decode(run.output_ids)
    assert run.prompt_ids == list(range(10, 22))
    assert sorted(os.listdir(store.root)) == [run_id]
    assert sorted(os.listdir(store.root / run_id)) == [
        "growth.parquet", "marginals.parquet", "nodes.parquet", "run.json", "steps.parquet"]


def test_every_id_of_the_run_has_its_text(store):
    records = make_run(3, seed=1)
    run = store.open(write(store, records).finish())
    ids = set(run.prompt_ids) | set(run.output_ids)
    for record in records[1:]:
        ids |= {record.root, record.bonus, *record.token_ids.tolist()}
        ids |= set(record.trace.marginal_token_ids.ravel().tolist())
        ids |= set(record.trace.target_top_ids.ravel().tolist())
        ids |= set(record.trace.growth.token_ids.tolist())
    assert {int(token) for token in run.vocabulary} == ids
    assert all(run.text_of(i) == text_of([i])[0] for i in ids - {7})
    assert run.text_of(96_000) == "<token 96000>"


def test_an_unfinished_run_reads_as_far_as_it_came(store):
    records = make_run(4, seed=2)
    writer = write(store, records[:3])
    assert os.listdir(store.root) == [f".{writer.id}.partial"]
    run = store.open(writer.id)
    assert not run.complete and run.info["finish_reason"] is None
    assert all(map(same_step, run.steps, records[:3])) and len(run.steps) == 3
    assert run.info["totals"]["tokens"] == len(run.output_ids)
    assert run.vocabulary[str(run.output_ids[0])] == text_of(run.output_ids[:1])[0]
    writer.append(records[3])
    writer.finish()
    assert len(store.open(writer.id).steps) == 4


def test_steps_without_trace_growth_or_prediction(store):
    records = make_run(2, trace=False)
    fixed = make_run(4, seed=5, priced=False)[3:]
    run = store.open(write(store, records + fixed).finish())
    assert all(map(same_step, run.steps, records + fixed))
    assert run.steps[1].trace is None and run.steps[1].predicted_verify_seconds is not None
    assert run.steps[3].predicted_verify_seconds is None
    assert run.steps[3].trace.predicted_draft_seconds is None


def test_abandoned_runs_keep_their_steps_and_empty_ones_vanish(store):
    writer = write(store, make_run(1))
    writer.abandon()
    assert len(store.open(writer.id).steps) == 2
    empty = store.create(make_info())
    empty.abandon()
    with pytest.raises(UserError, match="no run"):
        store.open(empty.id)


def test_list_is_newest_first_and_passes_over_what_is_no_run(store):
    assert store.list() == []
    first = write(store, make_run(2), run_id="a-1").finish("stop")
    second = write(store, make_run(2), run_id="b_2")
    for run_id, day in (("a-1", 1), (".b_2.partial", 2)):
        path = store.root / run_id / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()),
                                    "created": f"2026-01-0{day}T00:00:00+00:00"}))
    (store.root / "notes").mkdir()
    (store.root / "broken").mkdir()
    (store.root / "broken" / "run.json").write_text("{")
    listed = store.list()
    assert [(s.id, s.complete, s.finish_reason) for s in listed] == [
        (second.id, False, None), (first, True, "stop")]
    assert listed[1].tau == store.open(first).info["totals"]["tau"]


@pytest.mark.parametrize("run_id", ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "a" * 65,
                                    "a\n", "é", "a.b", None, 3])
def test_ids_that_could_leave_the_folder_are_refused(store, run_id):
    with pytest.raises(UserError, match="run id"):
        store.open(run_id)
    if run_id is not None:
        with pytest.raises(UserError, match="run id"):
            store.create(make_info(), run_id=run_id)


def test_an_id_is_used_once(store):
    write(store, make_run(1), run_id="one").finish()
    with pytest.raises(UserError, match="exists already"):
        store.create(make_info(), run_id="one")
    store.create(make_info(), run_id="two")
    with pytest.raises(UserError, match="exists already"):
        store.create(make_info(), run_id="two")


def test_attach_sets_one_key_and_no_reserved_one(store):
    run_id = write(store, make_run(1)).finish()
    before = store.open(run_id).info
    store.attach_yardstick(run_id, {"tokens": 30, "seconds": 2.0, "run_id": "plain"})
    after = store.open(run_id).info
    assert after == {**before, "yardstick": {"tokens": 30, "seconds": 2.0, "run_id": "plain",
                                             "tokens_per_second": 15.0}}
    with pytest.raises(ValueError, match="vocabulary"):
        store.attach(run_id, "vocabulary", {})
    with pytest.raises(UserError, match="no run"):
        store.attach("absent", "note", "x")


def test_what_is_attached_while_the_run_is_written_survives_its_end(store):
    writer = write(store, make_run(1))
    store.attach(writer.id, "note", "seen early")
    writer.finish()
    assert store.open(writer.id).info["note"] == "seen early"


def test_a_step_out_of_turn_or_at_odds_with_itself_is_refused(store):
    records = make_run(3)
    writer = store.create(make_info())
    writer.append(records[0])
    with pytest.raises(ValueError, match="step 2 follows step 0"):
        writer.append(records[2])
    records[1].emitted.append(1)
    with pytest.raises(ValueError, match="step 1"):
        writer.append(records[1])
    assert len(store.open(writer.id).steps) == 1


def test_delete_removes_the_folder_but_not_under_a_writer(store):
    writer = write(store, make_run(1))
    with pytest.raises(UserError, match="still being decoded"):
        store.delete(writer.id)
    store.delete(writer.finish())
    assert os.listdir(store.root) == []


def test_a_finish_that_dies_half_way_leaves_the_steps(store, monkeypatch):
    records = make_run(3)
    writer = write(store, records)
    with monkeypatch.context() as patch:
        patch.setattr("bastion.records.compact.os.rename", full_disk)
        with pytest.raises(UserError, match="No space left"):
            writer.finish()
    run = store.open(writer.id)
    assert not run.complete and all(map(same_step, run.steps, records)) and len(run.steps) == 4
    assert [summary.id for summary in store.list()] == [writer.id]
    store.delete(writer.id)
    assert os.listdir(store.root) == []


def test_a_kill_right_after_the_rename_leaves_one_run(store, monkeypatch):
    writer = write(store, make_run(1))
    monkeypatch.setattr("bastion.records.compact.shutil.rmtree", lambda *_, **__: None)
    writer.finish("length")
    monkeypatch.undo()
    assert sorted(os.listdir(store.root)) == [f".{writer.id}.partial", writer.id]
    assert store.open(writer.id).complete
    assert [summary.complete for summary in store.list()] == [True]
    store.delete(writer.id)
    assert os.listdir(store.root) == []


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be saved"):
        RunStore(tmp_path / "file").create(make_info())
    writer = RunStore(tmp_path / "runs").create(make_info())
    monkeypatch.setattr("bastion.records.streams.step_batches", full_disk)
    with pytest.raises(UserError, match="No space left"):
        writer.append(make_run(0)[0])


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
