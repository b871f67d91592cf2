"""The page Runs as a script: what it lists, and what each action does to the store."""

import io
import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import bastion.jobs.job_manager as manager_module
from bastion.jobs import JobManager
from bastion.records import RunStore
from bastion.records.search import RunFilter, kind_of, kinds, wanted_runs
from tests.counting_engine import CountingEngine
from tests.synthetic_runs import decode, make_info, make_run, text_of

ROOT = Path(__file__).resolve().parents[1]
NASTY = "<img src=x onerror=alert(1)> **b** [l](javascript:alert(1)) :smile: $x$ \u202eabc"


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    engine = CountingEngine()
    made = JobManager(engine, RunStore(tmp_path / "runs"))
    monkeypatch.setattr(manager_module, "_manager", made)
    monkeypatch.setattr("pages.parts.fetch.model_ready", lambda: True)
    yield made
    engine.release_all()
    made.close()


def add(jobs, run_id, **info):
    writer = jobs.store.create(make_info(**info), run_id=run_id, text_of=text_of, decode=decode)
    for record in make_run(2, seed=len(run_id)):
        writer.append(record)
    writer.finish("stop")


def page(**query) -> AppTest:
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300).run()
    test.query_params.clear()
    for name, value in query.items():
        test.query_params[name] = value
    test.switch_page("pages/runs.py").run()
    assert not test.exception, test.exception
    return test


def titles(test) -> list[str]:
    return list(test.dataframe[0].value["title"]) if test.dataframe else []


def words(test) -> str:
    return "\n".join(e.value for e in [*test.caption, *test.markdown, *test.info, *test.error, *test.success, *test.subheader]).replace("\\", "")


def choose(test, *rows) -> AppTest:
    """As a click on the rows' boxes."""
    key = "runs-table-" + test.dataframe[0].proto.id.rpartition("-runs-table-")[2]
    test.session_state[key] = {"selection": {"rows": list(rows), "columns": [], "cells": []}}
    return after(test)


def after(test) -> AppTest:
    test.run()
    assert not test.exception, test.exception
    return test


def button(test, label):
    return next(b for b in test.button if b.label == label)


def test_without_runs_the_page_says_what_to_do(jobs):
    test = page()
    assert test.subheader[0].value == "No runs yet" and "decoded on Explore is kept here" in words(test)
    assert "0 saved runs, 0" in words(test) and not test.dataframe and not jobs.store.root.exists()


def test_single_runs_are_listed_and_the_others_counted(jobs):
    add(jobs, "alone")
    for number in range(3):
        add(jobs, f"race-{number}", title=f"raced {number}", group={"kind": "race", "id": "r"})
    add(jobs, "bench-0", title="benched", group={"kind": "benchmark", "id": "b"}, prompt_set="gsm8k")
    test = page()
    assert titles(test) == ["Sheep"]
    control = test.button_group[0]
    assert list(control.options) == ["Single runs", "Of races", "Of benchmarks", "All"]
    total = sum(summary.bytes for summary in jobs.store.list())
    assert f"5 saved runs (1 single, 3 of races, 1 of benchmarks), {total / 1e3:.3g}" in words(test).replace("\u2009", " ")
    control.set_value("Of races")
    assert sorted(titles(after(test))) == ["raced 0", "raced 1", "raced 2"]
    test.button_group[0].set_value("All")
    assert len(titles(after(test))) == 5
    test.text_input(key="runs-search").set_value("GSM8K bench")
    assert titles(after(test)) == ["benched"]
    test.text_input(key="runs-search").set_value("nothing like it")
    assert "No run matches" in words(after(test))


def test_the_address_brings_search_and_filters(jobs):
    add(jobs, "one", title="first", device="NVIDIA H200")
    add(jobs, "two", title="second", method="ddtree:16")
    add(jobs, "three", title="third", method="ddtree:8")
    assert titles(page(**{"runs-method": "bastion"})) == ["first"]
    assert sorted(titles(page(**{"runs-method": "ddtree"}))) == ["second", "third"]
    assert titles(page(**{"runs-device": "NVIDIA H200"})) == ["first"]
    assert titles(page(**{"runs-search": "SECOND"})) == ["second"]
    assert len(titles(page(**{"runs-method": "gone"}))) == 3
    add(jobs, "race-1", title="raced", group={"kind": "race", "id": "r"})
    assert titles(page(**{"runs-show": "Of races"})) == ["raced"]


def test_a_filter_whose_last_run_is_deleted_does_not_break_the_page(jobs):
    add(jobs, "one", device="NVIDIA H200"), add(jobs, "two")
    test = page(**{"runs-device": "NVIDIA H200"})
    choose(test, 0)
    button(test, "Delete").click()
    assert titles(after(test)) == ["Sheep"] and "1 run is deleted." in words(test)


def test_deleting_can_be_undone_until_the_page_is_left(jobs):
    for name in ("one", "two", "three"):
        add(jobs, name, title=name)
    test = page()
    order = titles(test)
    assert button(test, "Delete").disabled and button(test, "Open in Explore").disabled
    choose(test, 0, 2)
    assert not button(test, "Delete").disabled and button(test, "Open in Explore").disabled
    button(test, "Delete").click()
    assert titles(after(test)) == [order[1]] and "2 runs are deleted." in words(test)
    assert {one.id for one in jobs.store.trashed()} == {order[0], order[2]}
    after(test)
    assert "2 runs are deleted." in words(test)
    button(test, "Undo").click()
    assert sorted(titles(after(test))) == sorted(order) and "are deleted" not in words(test) and jobs.store.trashed() == []
    choose(test, 1)
    button(test, "Delete").click()
    after(test)
    test.switch_page("pages/terms.py").run()
    test.switch_page("pages/runs.py").run()
    assert "1 run is deleted." not in words(test) and f"{order[1]}, deleted just now" in words(test)
    next(b for b in test.button if b.key == f"runs-restore-{order[1]}").click()
    assert len(titles(after(test))) == 3


def test_the_trash_can_be_emptied(jobs):
    add(jobs, "one")
    jobs.store.trash("one")
    test = page()
    assert "Deleted and kept 7 days: 1," in words(test)
    next(b for b in test.button if b.key == "runs-empty").click()
    after(test)
    assert jobs.store.trashed() == [] and "Deleted" not in words(test)


def test_a_run_that_cannot_be_restored_says_why(jobs):
    add(jobs, "one")
    raw = jobs.store.export_zip("one")
    jobs.store.trash("one")
    test = page()
    jobs.store.import_zip(raw)
    next(b for b in test.button if b.key == "runs-restore-one").click()
    assert "a run with that id is here again" in words(after(test))


def test_title_and_note(jobs):
    add(jobs, "one")
    test = choose(page(), 0)
    test.text_input(key="runs-title-one").set_value(NASTY)
    test.text_area(key="runs-note-one").set_value("a note\nof two lines")
    button(test, "Save").click()
    after(test)
    assert jobs.store.open("one").info["title"] == NASTY and jobs.store.list()[0].note == "a note\nof two lines"
    row = test.dataframe[0].value.iloc[0]
    assert row["title"] == NASTY.replace("\u202e", "") and row["note"] == "a note of two lines"
    assert test.text_input(key="runs-title-one").value == NASTY, "the row stays selected"
    test.text_input(key="runs-title-one").set_value("   ")
    button(test, "Save").click()
    assert "The title is empty" in words(after(test)) and jobs.store.open("one").info["title"] == NASTY


def test_what_was_chosen_is_there_after_a_look_at_another_page(jobs):
    for name in ("one", "two"):
        add(jobs, name, title=name)
    test = choose(page(), 1)
    test.switch_page("pages/terms.py").run()
    test.switch_page("pages/runs.py").run()
    assert not test.exception and not button(test, "Open in Explore").disabled
    button(test, "Open in Explore").click()
    test.run()
    assert test.query_params["run"] == jobs.store.list()[1].id


def test_zips_are_imported_and_each_refusal_is_one_line(jobs, tmp_path):
    other = RunStore(tmp_path / "other")
    jobs.store, kept = other, jobs.store
    add(jobs, "here-1"), add(jobs, "here-2")
    jobs.store = kept
    test = page()
    both = other.export_zips(["here-1", "here-2"])
    test.file_uploader[0].set_value([("runs.zip", both, "application/zip"), ("b<i>.zip", b"no zip", "application/zip")])
    after(test)
    assert "2 runs were added." in words(test) and "b<i>.zip: The file is not a whole zip archive" in words(test)
    assert len(titles(test)) == 2 and {s.id for s in jobs.store.list()} == {"here-1", "here-2"}
    assert not button(test, "Delete").disabled, "what was added is selected"
    after(test)
    assert len(jobs.store.list()) == 2, "it is imported once"


def test_a_deleted_run_is_no_longer_shown_by_explore(jobs):
    add(jobs, "one")
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300)
    test.query_params["run"] = "one"
    test.run()
    assert not test.error
    jobs.store.trash("one")
    test.run()
    assert not test.exception and "Run one was deleted" in test.error[0].value.replace("\\", "")


def test_the_sidebar_lists_single_runs_alone(jobs):
    for number in range(12):
        add(jobs, f"race-{number}", title=f"raced {number}", group={"kind": "race", "id": "r"})
    add(jobs, "alone", title="by itself")
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300).run()
    labels = [node.proto.label for node in test.sidebar if getattr(node, "type", "") == "page_link"]
    assert len(labels) == 2 and labels[0].endswith("by itself") and labels[1] == "All runs: 13"


def test_what_cannot_be_read_is_named_with_its_reason(jobs):
    add(jobs, "one")
    (jobs.store.root / "newer").mkdir()
    (jobs.store.root / "newer" / "run.json").write_text(json.dumps({"schema_version": 9}))
    test = page()
    assert [e.label for e in test.expander][-1] == "1 folder passed over" and "written by a newer version" in words(test)


def test_filters_hold_for_every_run_they_return(jobs):
    add(jobs, "a", method="ddtree:16", pair="p", device="cpu", prompt_set="gsm8k", title="Sheep and goats")
    add(jobs, "b", method="ddtree:8", pair="q", device="H200", group={"kind": "race", "id": "1"})
    add(jobs, "c", method="bastion", pair="q", device="H200", group={"kind": "odd"})
    runs = jobs.store.list()
    jobs.store.note("c", "a NOTE")

    def found(**wanted):
        return {run.id for run in wanted_runs(jobs.store.list(), RunFilter(**wanted))}

    assert found() == {"a", "b", "c"} and found(methods=["ddtree"]) == {"a", "b"} and found(methods=["ddtree"], pairs=["q"]) == {"b"}
    assert found(devices=["H200"], kind="single") == {"c"} and found(kind="race") == {"b"} and found(prompt_sets=["gsm8k"]) == {"a"}
    assert found(words="goats SHEEP") == {"a"} and found(words="note") == {"c"} and found(words="gsm8k") == {"a"}
    assert {run.id: kind_of(run) for run in runs} == {"a": "single", "b": "race", "c": "single"} and kinds(runs)["single"] == 2


def test_a_renamed_run_is_read_anew(jobs):
    from bastion.jobs.shown import show
    add(jobs, "one")
    assert show("one").info["title"] == "Sheep"
    jobs.store.rename("one", "Goats")
    assert show("one").info["title"] == "Goats"


@pytest.mark.parametrize("size, words", [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.00 kB"), (999_499, "999 kB"),
                                         (999_500, "1.00 MB"), (6_300_000, "6.30 MB"), (5 * 10**9, "5.00 GB"), (2 * 10**12, "2 000 GB")])
def test_sizes_are_said_with_three_digits(size, words):
    from bastion.figures.numbers import storage
    assert storage(size).replace("\u2009", " ").replace("\xa0", " ") == words


def test_the_html_and_zip_downloads_hold_the_run(jobs):
    from pages.parts.run_html import _page
    add(jobs, "one")
    page_bytes = _page(jobs.store, "one", 1)
    assert page_bytes.startswith(b"<!doctype html>") and b'"select":1' in page_bytes
    assert RunStore(jobs.store.root.parent / "x").import_zip(io.BytesIO(jobs.store.export_zip("one"))) == "one"
