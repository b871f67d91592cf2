"""A run as one zip file, out and in. Reading one executes nothing and trusts nothing."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from bastion.errors import UserError
from bastion.records.schema import FILE_NAMES

MAX_ZIP_BYTES = 2**30
"""Most bytes the five files of an archive may unpack to, together."""

ZipSource = bytes | str | os.PathLike[str] | BinaryIO


def pack(folder: Path, target: str | os.PathLike[str] | BinaryIO) -> None:
    """Write the five files of a finished run into a zip, flat, without compressing Parquet twice."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in FILE_NAMES:
            kind = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
            archive.write(folder / name, name, compress_type=kind)


def unpack(source: ZipSource, folder: Path) -> None:
    """Write the five files of an archive into the existing, empty `folder`.

    Raises UserError for anything but a plain zip that holds exactly those five, each once, at its
    top level, unencrypted and within `MAX_ZIP_BYTES`. What the files hold is not judged here.
    """
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    try:
        with zipfile.ZipFile(source) as archive:
            members = _checked_members(archive)
            left = MAX_ZIP_BYTES
            for name, member in members.items():
                left = _copy(archive, member, folder / name, left)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError,
            UnicodeDecodeError) as error:
        raise UserError("The file is not a whole zip archive; export the run again and choose "
                        "that file.") from error
    except OSError as error:
        raise UserError(f"The archive could not be read or unpacked "
                        f"({error.strerror or error}).") from None


def _checked_members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members = archive.infolist()
    names = [member.filename for member in members]
    if sorted(names) != sorted(FILE_NAMES):
        odd = next((name for name in names if name not in FILE_NAMES or names.count(name) > 1), None)
        detail = f"it holds {odd[:80]!r}" if odd is not None else "files are missing"
        raise UserError(f"The archive is no exported run ({detail}); choose a zip that holds "
                        f"exactly {', '.join(FILE_NAMES)}.")
    for member in members:
        mode = member.external_attr >> 16
        if member.flag_bits & 1 or member.is_dir() or (mode and (mode & 0o170000) not in (0, 0o100000)):
            raise UserError(f"{member.filename} in the archive is encrypted or no plain file; "
                            "export the run again and choose that file.")
    if sum(member.file_size for member in members) > MAX_ZIP_BYTES:
        raise _too_large()
    return dict(zip(names, members))


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
