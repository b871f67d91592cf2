"""Deleting can be undone for a while; runs are renamed, noted and weighed; the list stays quick and says what it leaves out."""

import json
import os
import shutil
import time

import pytest

from bastion.errors import UserError
from bastion.records import RunStore, listing
from bastion.records.trash import KEPT_DAYS
from tests.synthetic_runs import decode, make_info, make_run, same_step, text_of


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


def add(store, run_id, finish=True, **info):
    writer = store.create(make_info(**info), run_id=run_id, text_of=text_of, decode=decode)
    for record in make_run(2, seed=3):
        writer.append(record)
    writer.finish("stop") if finish else writer.close()
    return run_id


def ids(store):
    return {summary.id for summary in store.list()}


def test_a_deleted_run_is_gone_until_it_is_restored(store):
    add(store, "one"), add(store, "two")
    before = store.open("one")
    store.trash("one")
    assert ids(store) == {"two"} and sorted(os.listdir(store.root)) == [".trash-one", "two"]
    with pytest.raises(UserError, match="Run one was deleted; undo that .* runs restore one`"):
        store.open("one")
    for refuse in (lambda: store.rename("one", "x"), lambda: store.export_zip("one"), lambda: store.stamp("one"),
                   lambda: store.trash("one"), lambda: store.delete("one")):
        with pytest.raises(UserError, match="was deleted"):
            refuse()
    (gone,) = store.trashed()
    assert gone.id == "one" and gone.summary.title == "Sheep" and abs(gone.deleted - time.time()) < 60
    assert gone.bytes == sum(f.stat().st_size for f in (store.root / ".trash-one").iterdir())
    store.restore("one")
    after = store.open("one")
    assert after.info == before.info and all(map(same_step, after.steps, before.steps))
    assert ids(store) == {"one", "two"} and store.trashed() == []
    with pytest.raises(UserError, match="no deleted run one"):
        store.restore("one")


def test_a_run_cut_short_is_deleted_and_restored_as_that(store):
    add(store, "killed", finish=False)
    store.trash("killed")
    assert store.list() == [] and os.listdir(store.root) == [".trash-killed"]
    store.restore("killed")
    run = store.open("killed")
    assert not run.complete and run.info["finish_reason"] == "killed" and len(run.steps) == 3


def test_a_run_that_is_being_written_is_not_deleted(store):
    writer = store.create(make_info(), run_id="busy")
    with pytest.raises(UserError, match="still being decoded"):
        store.trash("busy")
    writer.append(make_run(1)[0])
    writer.finish()
    store.trash("busy")
    assert [one.id for one in store.trashed()] == ["busy"]


def test_an_id_that_is_taken_again_is_not_overwritten(store):
    add(store, "one", title="first")
    raw = store.export_zip("one")
    store.trash("one")
    assert store.import_zip(raw) == "one"
    with pytest.raises(UserError, match="a run with that id is here again; export and delete that one first"):
        store.restore("one")
    store.rename("one", "second")
    store.trash("one")   # the earlier one of that id goes for good
    store.restore("one")
    assert store.open("one").info["title"] == "second" and store.trashed() == []
    add(store, "two")
    store.trash("two")
    add(store, "two", finish=False)
    with pytest.raises(UserError, match="here again"):
        store.restore("two")


def test_the_trash_is_emptied_when_asked_and_of_old_runs_at_the_next_deletion(store):
    for name in ("old", "young", "next"):
        add(store, name)
    store.trash("old"), store.trash("young")
    past = time.time() - (KEPT_DAYS + 0.1) * 86_400
    os.utime(store.root / ".trash-old", (past, past))
    store.trash("next")
    assert {one.id for one in store.trashed()} == {"next", "young"}
    assert set(store.empty_trash()) == {"next", "young"} and os.listdir(store.root) == []
    assert store.empty_trash() == [] and RunStore(store.root / "nowhere").trashed() == []


def test_a_hand_in_the_trash_folder_is_no_harm(store):
    add(store, "one")
    store.trash("one")
    (store.root / ".trash-one" / "run.json").write_text("{")
    (store.root / ".trash-.." ).mkdir()
    (store.root / ".trash-a.partial").mkdir()
    (gone,) = store.trashed()
    assert gone.id == "one" and gone.summary is None
    for name in ("..", "../one", "a.partial", ""):
        with pytest.raises(UserError, match="not a run id"):
            store.restore(name)


def test_an_id_like_a_trash_folder_is_a_run_like_any(store):
    add(store, "trash-one", finish=False)
    assert ids(store) == {"trash-one"} and store.trashed() == []
    store.trash("trash-one")
    assert [one.id for one in store.trashed()] == ["trash-one"]
    store.restore("trash-one")
    assert ids(store) == {"trash-one"}


def test_titles_and_notes(store):
    add(store, "one")
    stamp = store.stamp("one")
    store.rename("one", "  Two\n sheep\t ")
    store.note("one", "  seen on the <b>GPU</b>\nsecond line ")
    assert store.stamp("one") != stamp
    (summary,) = store.list()
    assert summary.title == "Two sheep" and summary.note == "seen on the <b>GPU</b>\nsecond line"
    assert store.open("one").info["title"] == "Two sheep"
    store.note("one", "")
    assert store.list()[0].note == ""
    for wrong in ("", " \n\t", "x" * 121):
        with pytest.raises(UserError, match="title"):
            store.rename("one", wrong)
    with pytest.raises(UserError, match="2001 characters; shorten it to 2000"):
        store.note("one", "x" * 2001)
    store.rename("one", "a\ud800b")
    assert store.list()[0].title == "a<U+D800>b"
    with pytest.raises(UserError, match="no run"):
        store.rename("absent", "x")


def test_sizes_are_those_of_the_files(store):
    add(store, "whole"), add(store, "cut", finish=False)
    for summary in store.list():
        folder = store.root / ("whole" if summary.id == "whole" else ".cut.partial")
        assert summary.bytes == sum(f.stat().st_size for f in folder.iterdir()) > 1000
    writer = store.create(make_info(), run_id="growing")
    before = next(s for s in store.list() if s.id == "growing").bytes
    writer.append(make_run(1)[0])
    assert next(s for s in store.list() if s.id == "growing").bytes > before
    writer.close()


def test_folders_that_are_passed_over_say_why(store):
    add(store, "one")
    shutil.copytree(store.root / "one", store.root / "copy")
    for name, content in (("broken", "{"), ("newer", json.dumps({"schema_version": 9}))):
        (store.root / name).mkdir()
        (store.root / name / "run.json").write_text(content)
    (store.root / "no-run").mkdir()
    (store.root / "a file").write_text("")
    listed, passed_over = store.scan()
    assert [summary.id for summary in listed] == ["one"]
    reasons = {one.name: one.reason for one in passed_over}
    assert reasons.keys() == {"copy", "broken", "newer"}
    assert reasons["copy"] == "The folder of run copy holds another run ('one'); give it its own name back."
    assert "not valid JSON" in reasons["broken"] and "newer version" in reasons["newer"]


@pytest.mark.parametrize("changes", [{"sampling": {"temperature": True}}, {"note": None}, {"note": 5}, {"group": {"kind": None}}])
def test_odd_values_from_elsewhere_do_not_break_the_list(store, changes):
    add(store, "one")
    path = store.root / "one" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    (summary,) = store.list()
    assert summary.note == "" and summary.temperature in (0.0, None) and (summary.tau is None or 1 <= summary.tau < 9)


def test_runs_are_read_once_while_they_do_not_change(store, monkeypatch):
    for number in range(20):
        add(store, f"run-{number}")
    read, real = [], listing.read_run_json
    monkeypatch.setattr(listing, "read_run_json", lambda path: (read.append(path.parent.name), real(path))[1])
    assert len(store.list()) == 20 and len(read) == 20
    assert len(store.list()) == 20 and len(read) == 20
    store.rename("run-7", "again")
    assert len(store.list()) == 20 and read[20:] == ["run-7"]
