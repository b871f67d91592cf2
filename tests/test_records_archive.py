"""A run travels as a zip; an archive from elsewhere is checked before anything stays on disk."""

import io
import json
import os
import stat
import zipfile

import pytest

from bastion.errors import UserError
from bastion.records import RunStore, archive
from tests.synthetic_runs import decode, make_info, make_run, same_step, text_of


@pytest.fixture
def exported(tmp_path):
    store = RunStore(tmp_path / "from")
    writer = store.create(make_info(), run_id="travels", text_of=text_of, decode=decode)
    for record in make_run(3, seed=8):
        writer.append(record)
    writer.finish("stop")
    return store.export_zip("travels")


def rezip(raw, change=lambda files: files, kind=zipfile.ZIP_STORED):
    with zipfile.ZipFile(io.BytesIO(raw)) as source:
        files = {name: source.read(name) for name in source.namelist()}
    files = change(files)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as target:
        for name, content in files.items():
            target.writestr(name, content)
    return out.getvalue()


def with_info(**changes):
    def change(files):
        return {**files, "run.json": json.dumps({**json.loads(files["run.json"]), **changes})}
    return change


def refuse(tmp_path, raw, match):
    store = RunStore(tmp_path / "to")
    with pytest.raises(UserError, match=match):
        store.import_zip(raw)
    assert not store.root.exists()


def test_out_and_in_again(tmp_path, exported):
    store = RunStore(tmp_path / "to")
    assert store.import_zip(exported) == "travels"
    run = store.open("travels")
    assert run.complete and run.info["finish_reason"] == "stop"
    assert all(map(same_step, run.steps, make_run(3, seed=8))) and len(run.steps) == 4
    again = store.import_zip(io.BytesIO(exported))
    assert again != "travels"
    assert store.open(again).info["imported_from"] == "travels"
    assert len(store.list()) == 2


def test_export_to_a_file(tmp_path, exported):
    path = tmp_path / "run.zip"
    assert RunStore(tmp_path / "from").export_zip("travels", path) is None
    assert RunStore(tmp_path / "to").import_zip(path) == "travels"


def test_a_run_that_was_cut_short_travels_as_far_as_it_came(tmp_path):
    store = RunStore(tmp_path / "from")
    writer = store.create(make_info(), text_of=text_of)
    for record in make_run(3)[:2]:
        writer.append(record)
    writer.close()
    other = RunStore(tmp_path / "to")
    run = other.open(other.import_zip(store.export_zip(writer.id)))
    assert len(run.steps) == 2 and not run.complete and run.info["finish_reason"] == "killed"
    assert run.text == store.open(writer.id).text
    assert not store.open(writer.id).complete


@pytest.mark.parametrize("name", ["../evil.json", "/etc/evil", "a/run.json", "extra.txt",
                                  "..\\evil", "C:evil", "steps.pkl"])
def test_other_names_are_refused(tmp_path, exported, name):
    refuse(tmp_path, rezip(exported, lambda files: {**files, name: b"x"}), "no exported run")
    assert os.listdir(tmp_path) == ["from"]


def test_missing_and_doubled_names_are_refused(tmp_path, exported):
    refuse(tmp_path, rezip(exported, lambda files: {
        name: raw for name, raw in files.items() if name != "nodes.parquet"}), "files are missing")
    out = io.BytesIO(exported)
    with pytest.warns(UserWarning), zipfile.ZipFile(out, "a") as target:
        target.writestr("run.json", b"{}")
    refuse(tmp_path, out.getvalue(), "no exported run")


def test_a_link_is_refused(tmp_path, exported):
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(exported)) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            member = zipfile.ZipInfo(name)
            member.external_attr = (stat.S_IFLNK | 0o777) << 16 if name == "run.json" else 0
            target.writestr(member, b"/etc/passwd" if name == "run.json" else source.read(name))
    refuse(tmp_path, out.getvalue(), "no plain file")


def test_no_zip_at_all_and_half_a_zip(tmp_path, exported):
    refuse(tmp_path, b"not a zip", "not a whole zip")
    refuse(tmp_path, b"", "not a whole zip")
    refuse(tmp_path, exported[:len(exported) // 2], "not a whole zip")
    broken = bytearray(exported)
    broken[200] ^= 0xFF  # inside the first member's data: its checksum fails
    refuse(tmp_path, bytes(broken), "not a whole zip")
    with pytest.raises(UserError, match="could not be read"):
        RunStore(tmp_path / "to").import_zip(tmp_path / "absent.zip")


def test_a_bomb_is_stopped_by_what_it_declares(tmp_path, exported, monkeypatch):
    monkeypatch.setattr(archive, "MAX_ZIP_BYTES", 2**20)
    bomb = rezip(exported, lambda files: {**files, "steps.parquet": bytes(2**21)},
                 zipfile.ZIP_DEFLATED)
    assert len(bomb) < 2**20
    refuse(tmp_path, bomb, "unpacks to more")


def test_a_bomb_that_lies_about_its_size_is_stopped_too(tmp_path, exported):
    bomb = bytearray(rezip(exported, lambda files: {**files, "steps.parquet": bytes(2**21)},
                           zipfile.ZIP_DEFLATED))
    true, lie = (2**21).to_bytes(4, "little"), (10).to_bytes(4, "little")
    assert bomb.count(true) >= 2
    refuse(tmp_path, bytes(bomb.replace(true, lie)), "not a whole zip")


@pytest.mark.parametrize("changes, match", [
    ({"schema_version": 2}, "newer version"), ({"schema_version": "1"}, "no schema version"),
    ({"schema_version": True}, "no schema version"), ({"id": "../../x"}, "not a run id"),
    ({"id": 5}, "'id'"), ({"vocabulary": {"1": 2}}, "'vocabulary'"),
    ({"vocabulary": {"x": "y"}}, "'vocabulary'"), ({"prompt_ids": [1, "2"]}, "'prompt_ids'"),
    ({"totals": []}, "'totals'"), ({"totals": {"tau": "3"}}, "'totals'"),
    ({"yardstick": {"tokens_per_second": "9"}}, "'yardstick'"), ({"created": "\x1b[31m"}, "'created'"), ({"title": None}, "'title'"), ({"yardstick": 3}, "'yardstick'"),
])
def test_a_run_json_that_cannot_be_used(tmp_path, exported, changes, match):
    refuse(tmp_path, rezip(exported, with_info(**changes)), match)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"NaN", b'{"schema_version": NaN}', b"\xff",
                                 b"[" * 100_000, b"1" * 10_000, b'"x"'])
def test_a_run_json_that_is_no_json_object(tmp_path, exported, raw):
    refuse(tmp_path, rezip(exported, lambda files: {**files, "run.json": raw}),
           "not valid JSON|not hold a run|schema version|number that is out of range")
