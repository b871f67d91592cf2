"""`python -m bastion runs`: naming, the trash, several runs in one zip, and the HTML page."""

import json
import os
import subprocess
import sys

import pytest

from bastion.cli import main
from bastion.records import RunStore
from tests.synthetic_runs import decode, make_info, make_run, text_of


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    store = RunStore()
    for name in ("one", "two"):
        writer = store.create(make_info(title=name), run_id=name, text_of=text_of, decode=decode)
        for record in make_run(3):
            writer.append(record)
        writer.finish("stop")
    return store


def said(capsys, *arguments) -> str:
    capsys.readouterr()
    assert main(["runs", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys, *arguments) -> str:
    capsys.readouterr()
    assert main(["runs", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.strip().splitlines()) == 1
    return captured.err


def test_title_and_note(capsys, store):
    said(capsys, "rename", "one", "Seven  sheep")
    said(capsys, "note", "one", "seen on Monday")
    summary = next(s for s in store.list() if s.id == "one")
    assert (summary.title, summary.note) == ("Seven sheep", "seen on Monday")
    assert "no note" in said(capsys, "note", "one", "")
    assert "The title is empty" in refused(capsys, "rename", "one", " ")
    assert "shorten it to 2000" in refused(capsys, "note", "one", "x" * 2001)
    assert "no run three" in refused(capsys, "rename", "three", "x")
    assert next(s for s in store.list() if s.id == "one").title == "Seven sheep"


def test_delete_can_be_undone_unless_it_is_for_good(capsys, store):
    assert "`runs restore one` brings it back for 7 days" in said(capsys, "delete", "one")
    assert [s.id for s in store.list()] == ["two"]
    assert "was deleted; undo that" in refused(capsys, "show", "one")
    said(capsys, "restore", "one")
    assert {s.id for s in store.list()} == {"one", "two"}
    assert "no deleted run one" in refused(capsys, "restore", "one")
    assert "restore" not in said(capsys, "delete", "one", "--now")
    assert os.listdir(store.root) == ["two"] and "no deleted run" in refused(capsys, "restore", "one")


def test_a_zip_of_several_runs_is_added_whole(capsys, store, tmp_path):
    store.export_zips(["one", "two"], tmp_path / "both.zip")
    for name in ("one", "two"):
        said(capsys, "delete", name, "--now")
    assert json.loads(said(capsys, "import", str(tmp_path / "both.zip"), "--json", "-")) == {"ids": ["one", "two"]}
    assert {s.id for s in store.list()} == {"one", "two"}


def test_html(capsys, store, tmp_path):
    file = tmp_path / "run.html"
    assert "kB" in said(capsys, "html", "one", str(file), "--step", "2")
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and '"select":2' in text and os.listdir(tmp_path) and len(os.listdir(tmp_path)) == 2
    assert "there is no step 4" in refused(capsys, "html", "one", str(file), "--step", "4")
    assert file.read_text(encoding="utf-8") == text
    assert "cannot be written" in refused(capsys, "html", "one", str(tmp_path / "no" / "run.html"))
    assert "cannot be written" in refused(capsys, "html", "one", str(tmp_path))
    assert "no run three" in refused(capsys, "html", "three", str(file))


def test_nothing_of_it_imports_torch(store, tmp_path, repo):
    script = ("import sys; from bastion.cli import main; "
              f"main(['runs', 'html', 'one', {str(tmp_path / 'a.html')!r}]); main(['runs', 'delete', 'one']); main(['runs', 'restore', 'one']);"
              "print('torch' in sys.modules, 'streamlit' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", script], cwd=repo, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False False", done.stderr
