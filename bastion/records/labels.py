"""The words a person gives a run: its title and its note."""

from __future__ import annotations

from bastion.errors import UserError
from bastion.token_text import escape_undecodable

LONGEST_TITLE = 120
LONGEST_NOTE = 2000


def checked_title(text: str) -> str:
    """One line, white space collapsed; UserError when it is empty or longer than `LONGEST_TITLE` characters."""
    title = escape_undecodable(" ".join(text.split()))
    if not title:
        raise UserError("The title is empty: give the run a few words.")
    return _short(title, LONGEST_TITLE, "title")


def checked_note(text: str) -> str:
    """Trimmed, empty allowed; UserError when it is longer than `LONGEST_NOTE` characters."""
    return _short(escape_undecodable(text.strip()), LONGEST_NOTE, "note")


def _short(text: str, longest: int, what: str) -> str:
    if len(text) > longest:
        raise UserError(f"The {what} has {len(text)} characters; shorten it to {longest} at most.")
    return text
