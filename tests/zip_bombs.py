"""Small archives whose members unpack to gigabytes, written without ever holding them."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

PIECE = 2**24


def zeros_deflated(size: int) -> bytes:
    """A raw deflate stream of `size` zero bytes (a multiple of 16 MB): one piece ending in a full flush,
    after which nothing refers back, repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(PIECE)) + packer.flush(zlib.Z_FULL_FLUSH)
    return piece * (size // PIECE) + zlib.compressobj(9, zlib.DEFLATED, -15).flush()


def with_zeros(raw: bytes, name: str, size: int, declared: int | None = None, crc: int = 0) -> bytes:
    """The archive `raw` with its member `name` replaced by `size` zeros, declared as that or as `declared`.

    The member really inflates to `size` bytes. It is put in as stored data of its compressed length,
    then both headers are rewritten: method deflate, the declared size, `crc`.
    """
    stream = zeros_deflated(size)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as source, zipfile.ZipFile(out, "w") as target:
        for member in source.namelist():
            target.writestr(member, stream if member == name else source.read(member))
        place = target.getinfo(name).header_offset
    made = bytearray(out.getvalue())
    claimed = size if declared is None else declared
    central = made.rindex(b"PK\x01\x02", 0, made.rindex(name.encode()))
    if claimed < 2**32:
        for at, shift in ((place, 8), (central, 10)):
            struct.pack_into("<HHHIII", made, at + shift, zipfile.ZIP_DEFLATED, 0, 33, crc, len(stream), claimed)
        return bytes(made)
    return _with_zip64(made, central, place, len(stream), claimed)


def _with_zip64(made: bytearray, central: int, place: int, packed: int, claimed: int) -> bytes:
    """Sizes past four gigabytes stand in an extra field of the central directory."""
    for at, shift in ((place, 8), (central, 10)):
        struct.pack_into("<HHHIII", made, at + shift, zipfile.ZIP_DEFLATED, 0, 33, 0, packed, 2**32 - 1)
    extra = struct.pack("<HHQ", 1, 8, claimed)
    name_length = struct.unpack_from("<H", made, central + 28)[0]
    struct.pack_into("<H", made, central + 30, len(extra))
    made[central + 46 + name_length:central + 46 + name_length] = extra
    end = made.rindex(b"PK\x05\x06")
    struct.pack_into("<I", made, end + 12, struct.unpack_from("<I", made, end + 12)[0] + len(extra))
    return bytes(made)
