"""What an archive from elsewhere may try: each is one clear sentence, and nothing is written."""

import io
import json
import os
import resource
import stat
import zipfile
import zlib

import numpy as np
import pytest

from bastion.errors import UserError
from bastion.records import RunStore, archive
from tests.synthetic_runs import decode, make_info, make_run, same_step, text_of
from tests.zip_bombs import with_zeros

GIGABYTE = 2**30


def add_run(store, run_id, seed=8, **info):
    writer = store.create(make_info(**info), run_id=run_id, text_of=text_of, decode=decode)
    for record in make_run(2, seed=seed, nodes=5, choices=3, beyond=3):
        writer.append(record)
    writer.finish("stop")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    store = RunStore(tmp_path_factory.mktemp("from"))
    for number in range(3):
        add_run(store, f"travels-{number}", seed=number)
    return store


@pytest.fixture(scope="module")
def exported(source):
    return source.export_zip("travels-0")


def rezip(raw, **changes):
    """The archive with members replaced, added (`**{name: bytes}`) or, for None, left out."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        for name in dict.fromkeys([*old.namelist(), *changes]):
            content = changes[name] if name in changes else old.read(name)
            if content is not None:
                new.writestr(name, content)
    return out.getvalue()


def refused(tmp_path, raw) -> str:
    """The sentence; nothing is left in a new store, and nothing in one that has a run already."""
    empty, used = RunStore(tmp_path / "new"), RunStore(tmp_path / "used")
    if not used.root.exists():
        add_run(used, "mine")
    said = []
    for store in (empty, used):
        with pytest.raises(UserError) as error:
            store.import_zips(raw)
        said.append(str(error.value))
    assert not empty.root.exists() and os.listdir(used.root) == ["mine"]
    assert said[0] == said[1] and "\n" not in said[0] and str(tmp_path) not in said[0] and ".import" not in said[0]
    assert len(said[0]) < 300
    return said[0]


def filled(raw, size, crc=0, declared=None, name="steps.parquet"):
    return with_zeros(raw, name, size, declared, crc)


@pytest.mark.parametrize("name", ["../evil.json", "../../run.json", "/etc/cron.d/evil", "a/run.json", "..\\evil", "\\evil",
                                  "C:\\evil", "run.json/", "steps.pkl", "extra.txt", "RUN.JSON", "é" * 300])
def test_names_that_are_not_the_five(tmp_path, exported, name):
    words = refused(tmp_path, rezip(exported, **{name: b"x"}))
    assert "no exported run" in words or "not a whole zip" in words


@pytest.mark.parametrize("name", ["../travels-0.zip", "a/travels-0.zip", "/travels-0.zip", "..zip", "travels 0.zip"])
def test_names_of_runs_that_are_no_ids(tmp_path, source, exported, name):
    assert "no exported run" in refused(tmp_path, rezip(source.export_zips(["travels-1", "travels-2"]), **{name: exported}))


def test_five_gigabytes_that_say_so(tmp_path, exported):
    bomb = filled(exported, 5 * GIGABYTE)
    assert len(bomb) < 6 * 2**20
    with zipfile.ZipFile(io.BytesIO(bomb)) as opened:
        assert opened.getinfo("steps.parquet").file_size == 5 * GIGABYTE
        with opened.open("steps.parquet") as member:
            assert not any(member.read(2**20))
    assert "unpacks to more than 1024 MB" in refused(tmp_path, bomb)


@pytest.mark.parametrize("declared", [10, 2**20, 900 * 2**20])
def test_five_gigabytes_that_say_less(tmp_path, exported, declared):
    """zipfile stops at the declared size; the checksum of that much, even when it is right, makes no table."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for crc in (0, zlib.crc32(bytes(declared)) if declared < 2**21 else 1):
        words = refused(tmp_path, filled(exported, 5 * GIGABYTE, crc, declared))
        assert "not a whole zip" in words or "steps.parquet is damaged or cut short" in words
    # the peak of this process, whatever other tests took of it before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < GIGABYTE


def test_five_gigabytes_under_a_limit_that_the_header_respects(tmp_path, exported, monkeypatch):
    """What comes out is counted too, should a reader ever give more than was declared."""
    monkeypatch.setattr(archive, "_check_plain", lambda members: None)
    monkeypatch.setattr(archive, "MAX_ZIP_BYTES", 2**25)
    monkeypatch.setattr(archive, "_checked_members", lambda opened, left: {m.filename: m for m in opened.infolist()})
    assert "unpacks to more than 32 MB" in refused(tmp_path, filled(exported, 5 * GIGABYTE))


def test_a_bomb_inside_an_archive_of_several(tmp_path, source, exported):
    several = source.export_zips(["travels-1", "travels-2"])
    bomb = filled(exported, 5 * GIGABYTE)
    assert "unpacks to more" in refused(tmp_path, rezip(several, **{"travels-0.zip": bomb}))
    assert "unpacks to more" in refused(tmp_path, filled(several, 5 * GIGABYTE, name="travels-1.zip"))
    assert "no exported run" in refused(tmp_path, rezip(several, **{"deeper.zip": several}))
    assert "not a whole zip" in refused(tmp_path, rezip(several, **{"travels-0.zip": b"PK"}))


def test_many_runs_share_one_limit(tmp_path, source, monkeypatch):
    whole = source.export_zips(["travels-0", "travels-1", "travels-2"])
    with zipfile.ZipFile(io.BytesIO(whole)) as opened:
        sizes = [sum(m.file_size for m in zipfile.ZipFile(io.BytesIO(opened.read(n))).infolist()) for n in opened.namelist()]
    monkeypatch.setattr(archive, "MAX_ZIP_BYTES", sum(sizes) - 1)
    assert "unpacks to more" in refused(tmp_path, whole)
    monkeypatch.setattr(archive, "MAX_ZIP_BYTES", sum(sizes))
    assert len(RunStore(tmp_path / "to").import_zips(whole)) == 3
    monkeypatch.setattr(archive, "MAX_RUNS", 2)
    assert "holds 3 runs and 2 are the most" in refused(tmp_path, whole)


@pytest.mark.parametrize("several", [False, True])
def test_doubled_names(tmp_path, source, exported, several):
    out = io.BytesIO(source.export_zips(["travels-0", "travels-1"]) if several else exported)
    with pytest.warns(UserWarning), zipfile.ZipFile(out, "a") as target:
        target.writestr("travels-0.zip" if several else "run.json", exported if several else b"{}")
    assert ("two runs of one name" if several else "no exported run") in refused(tmp_path, out.getvalue())


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFCHR])
@pytest.mark.parametrize("several", [False, True])
def test_links_and_devices(tmp_path, source, exported, mode, several):
    raw = source.export_zips(["travels-0", "travels-1"]) if several else exported
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        for place, name in enumerate(old.namelist()):
            member = zipfile.ZipInfo(name)
            member.external_attr = (mode | 0o777) << 16 if place == 0 else 0
            new.writestr(member, b"/etc/passwd" if place == 0 else old.read(name))
    assert "no plain file" in refused(tmp_path, out.getvalue())


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_a_run_is_never_packed_with(tmp_path, exported, kind):
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(exported)) as old, zipfile.ZipFile(out, "w", kind) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert "compressed in a way" in refused(tmp_path, out.getvalue())


@pytest.mark.parametrize("table", ["steps", "nodes", "growth", "marginals"])
def test_a_truncated_table(tmp_path, exported, table):
    name = f"{table}.parquet"
    with zipfile.ZipFile(io.BytesIO(exported)) as opened:
        whole = opened.read(name)
    for cut in (0, 4, len(whole) // 2, len(whole) - 1):
        words = refused(tmp_path, rezip(exported, **{name: whole[:cut]}))
        assert words == f"The archive's {name} is damaged or cut short; export the run again and choose that file."


def test_a_newer_schema(tmp_path, source, exported):
    with zipfile.ZipFile(io.BytesIO(exported)) as opened:
        info = json.loads(opened.read("run.json"))
    newer = rezip(exported, **{"run.json": json.dumps({**info, "schema_version": 7})})
    words = ("The archive's run.json was written by a newer version (schema 7, this one reads up to 1); "
             "update BASTION Studio to open it.")
    assert refused(tmp_path, newer) == words
    assert refused(tmp_path, rezip(source.export_zips(["travels-1", "travels-2"]), **{"travels-0.zip": newer})) == words


@pytest.mark.parametrize("raw", [b"", b"PK", b"PK\x05\x06" + bytes(18), b"\x80\x04\x95.", b"{}", b"PAR1" * 9, b"\x1f\x8b" + bytes(40)])
def test_files_that_hold_no_run(tmp_path, raw):
    words = refused(tmp_path, raw)
    assert "not a whole zip" in words or "no exported run" in words


def test_any_damage_is_noticed_or_harmless(tmp_path, exported):
    """Bytes changed all over the archive: it is refused in one sentence or the run is what it was."""
    rng = np.random.default_rng(0)
    whole = make_run(2, seed=0, nodes=5, choices=3, beyond=3)
    for number, position in enumerate(rng.integers(0, len(exported), 400)):
        broken = bytearray(exported)
        broken[position] ^= int(rng.integers(1, 256))
        store = RunStore(tmp_path / str(number))
        try:
            run = store.open(store.import_zip(bytes(broken)))
        except UserError:
            assert not store.root.exists()
        else:
            assert all(map(same_step, run.steps, whole)) and len(run.steps) == 3


def test_several_runs_travel_together(tmp_path, source):
    store = RunStore(tmp_path / "to")
    whole = source.export_zips(["travels-2", "travels-0"])
    assert store.import_zips(whole) == ["travels-2", "travels-0"]
    for number in (2, 0):
        assert all(map(same_step, store.open(f"travels-{number}").steps, source.open(f"travels-{number}").steps))
    again = store.import_zips(io.BytesIO(whole))
    assert len(set(again) | {"travels-2", "travels-0"}) == 4 and len(store.list()) == 4
    assert source.export_zips(["travels-1"]) == source.export_zip("travels-1")
    with pytest.raises(UserError, match="holds 2 runs"):
        store.import_zip(whole)
    assert len(os.listdir(store.root)) == 4


def test_a_disk_that_takes_no_more_takes_none_of_several(tmp_path, source, monkeypatch):
    whole, store, moved = source.export_zips(["travels-0", "travels-1"]), RunStore(tmp_path / "to"), []
    rename = os.rename

    def once(old, new):
        moved.append(new)
        if len(moved) == 2:
            raise OSError(28, "No space left on device")
        rename(old, new)

    monkeypatch.setattr("bastion.records.store.os.rename", once)
    with pytest.raises(UserError, match="No space left"):
        store.import_zips(whole)
    assert len(moved) == 2 and not store.root.exists()
