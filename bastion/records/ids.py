"""Run ids: safe as a folder name, in a URL and on a command line."""

from __future__ import annotations

import re
import secrets
from datetime import datetime, UTC

from bastion.errors import UserError

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


def new_run_id(now: datetime | None = None) -> str:
    """An id that sorts by time (UTC) and does not clash: `20260130-154502-3f9a1c`."""
    now = now or datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def checked_run_id(run_id: object) -> str:
    """The id itself; UserError unless it is 1 to 64 letters, digits, hyphens and underscores."""
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise UserError(f"{str(run_id)[:80]!r} is not a run id: use up to 64 letters, digits, "
                        "hyphens and underscores, as the list of runs shows them.")
    return run_id
