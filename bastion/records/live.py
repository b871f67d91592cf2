"""Whether a hidden folder is still being written, in this process or another.

The writer holds a file lock that the system drops when its process ends, however it ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

LOCK = "writing.lock"


def hold(folder: Path) -> BinaryIO:
    """Take the lock; closing what is returned gives it up."""
    handle = open(folder / LOCK, "wb")
    _try_lock(handle)
    return handle


def try_hold(folder: Path) -> BinaryIO | None:
    """Take the lock, or None when some process (this one too) has it; closing gives it up."""
    handle = open(folder / LOCK, "ab")
    if _try_lock(handle):
        return handle
    handle.close()
    return None


def is_held(folder: Path) -> bool:
    """Some writer has the folder open now."""
    try:
        with open(folder / LOCK, "r+b") as handle:
            return not _try_lock(handle)
    except FileNotFoundError:
        return False
    except OSError:  # not ours to lock, so not ours to call dead
        return True


def _try_lock(handle: BinaryIO) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True
