"""Runs as one zip file, out and in. Reading one executes nothing and trusts nothing.

An archive of one run holds its five files, flat. An archive of several holds one such archive per
run, `<run id>.zip`.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bastion.errors import UserError
from bastion.records.ids import RUN_ID
from bastion.records.schema import FILE_NAMES

MAX_ZIP_BYTES = 2**30
"""Most bytes an archive may unpack to, all its runs together."""
MAX_RUNS = 1000
"""Most runs in one archive."""
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

ZipSource = bytes | str | os.PathLike[str] | BinaryIO


def pack(folder: Path, target: str | os.PathLike[str] | BinaryIO) -> None:
    """Write the five files of a finished run into a zip, flat, without compressing Parquet twice."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in FILE_NAMES:
            kind = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
            archive.write(folder / name, name, compress_type=kind)


def pack_several(runs: Iterable[tuple[str, bytes]], target: str | os.PathLike[str] | BinaryIO) -> None:
    """Write archives of single runs, each with its id, into one zip."""
    with zipfile.ZipFile(target, "w") as archive:
        for run_id, raw in runs:
            archive.writestr(f"{run_id}.zip", raw)


def unpack(source: ZipSource, folder: Path) -> list[Path]:
    """Write the runs of an archive into new folders inside the existing, empty `folder`; those folders.

    Raises UserError for anything but a plain zip that holds exactly the five files of a run, or
    archives of such runs, each name once, at its top level, unencrypted and within `MAX_ZIP_BYTES`.
    What the files hold is not judged here.
    """
    with _opened(source) as archive:
        inner = _run_archives(archive)
        if inner is None:
            return [_unpack_run(archive, folder, 0, MAX_ZIP_BYTES)[0]]
        folders, left = [], MAX_ZIP_BYTES
        whole = folder / "several.zip"
        for number, member in enumerate(inner):
            _copy(archive, member, whole, MAX_ZIP_BYTES)
            with _opened(whole) as one:
                made, left = _unpack_run(one, folder, number, left)
            folders.append(made)
            whole.unlink()
        return folders


@contextmanager
def _opened(source: ZipSource) -> Iterator[zipfile.ZipFile]:
    """The archive, and whatever is wrong with it as one clear sentence."""
    try:
        with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as archive:
            yield archive
    except UserError:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
            OverflowError, ValueError) as error:
        raise UserError("The file is not a whole zip archive; export the run again and choose "
                        "that file.") from error
    except OSError as error:
        raise UserError(f"The archive could not be read or unpacked "
                        f"({error.strerror or error}).") from None


def _run_archives(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo] | None:
    """The members of an archive of several runs; None when it is none."""
    members = archive.infolist()
    names = [member.filename for member in members]
    if not names or not all(name.endswith(".zip") and RUN_ID.fullmatch(name.removesuffix(".zip")) for name in names):
        return None
    if len(set(names)) != len(names):
        raise UserError("The archive holds two runs of one name; export them again and choose that file.")
    if len(names) > MAX_RUNS:
        raise UserError(f"The archive holds {len(names)} runs and {MAX_RUNS} are the most; export them in parts.")
    _check_plain(members)
    return members


def _unpack_run(archive: zipfile.ZipFile, folder: Path, number: int, left: int) -> tuple[Path, int]:
    """Write the five files into a new folder; returns it and how many bytes may still follow."""
    members = _checked_members(archive, left)
    target = folder / str(number)
    target.mkdir()
    for name, member in members.items():
        left = _copy(archive, member, target / name, left)
    return target, left


def _checked_members(archive: zipfile.ZipFile, left: int) -> dict[str, zipfile.ZipInfo]:
    members = archive.infolist()
    names = [member.filename for member in members]
    if sorted(names) != sorted(FILE_NAMES):
        odd = next((name for name in names if name not in FILE_NAMES or names.count(name) > 1), None)
        detail = f"it holds {odd[:80]!r}" if odd is not None else "files are missing"
        raise UserError(f"The archive is no exported run ({detail}); choose a zip that holds "
                        f"exactly {', '.join(FILE_NAMES)}.")
    _check_plain(members)
    if sum(member.file_size for member in members) > left:
        raise _too_large()
    return dict(zip(names, members))


def _check_plain(members: list[zipfile.ZipInfo]) -> None:
    for member in members:
        mode = member.external_attr >> 16
        if member.flag_bits & 1 or member.is_dir() or (mode and (mode & 0o170000) not in (0, 0o100000)):
            raise UserError(f"{member.filename} in the archive is encrypted or no plain file; "
                            "export the run again and choose that file.")
        if member.compress_type not in COMPRESSIONS:   # others take memory by what the file asks for
            raise UserError(f"{member.filename} in the archive is compressed in a way that is not read here; "
                            "export the run again and choose that file.")
    if sum(member.file_size for member in members) > MAX_ZIP_BYTES:
        raise _too_large()


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, left: int) -> int:
    """Copy one member, counting what really comes out; returns how many bytes may still follow."""
    with archive.open(member) as source, open(path, "xb") as target:
        while chunk := source.read(2**20):
            left -= len(chunk)
            if left < 0:
                raise _too_large()
            target.write(chunk)
    return left


def _too_large() -> UserError:
    return UserError(f"The archive unpacks to more than {MAX_ZIP_BYTES // 2**20} MB, which no run "
                     "does; it was not imported.")
