"""Prompts from JSON lines, and a list of methods from one line of text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from bastion.errors import UserError


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt of a set: what the user says, turn by turn."""

    id: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The conversations of one file; `name` is the file's name without its ending."""

    name: str
    conversations: tuple[Conversation, ...]


def read_prompt_set(file: str | Path, limit: int | None = None) -> PromptSet:
    """Read JSON lines with {"turns": [text, ...]} or {"prompt": text}, and an optional "id".

    `limit` keeps the first so many. Raises UserError that names the file and line.
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): check the path.") from error
    conversations: list[Conversation] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if limit is not None and len(conversations) >= limit:
            break
        if line.strip():
            conversations.append(_conversation(line, f"{file}, line {number}", str(number)))
    if not conversations:
        raise UserError(f"{file} holds no prompt: write one JSON object with \"prompt\" or \"turns\" on each line.")
    return PromptSet(Path(file).stem, tuple(conversations))


def _conversation(line: str, where: str, number: str) -> Conversation:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}).") from error
    turns = (row.get("turns", [row["prompt"]] if "prompt" in row else None)) if isinstance(row, dict) else None
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UserError(f"{where} needs \"prompt\" (a text) or \"turns\" (a list of texts), none of them empty.")
    return Conversation(str(row.get("id", number)), tuple(turns))


def split_methods(text: str) -> list[str]:
    """Method names from "ar,specinfer:4,2,2,1,bastion".

    Names begin with a letter and their numbers do not, so a comma separates two methods exactly
    when a letter follows it. Doubles are dropped; raises UserError when nothing is left.
    """
    names = [name.strip().strip(",").strip() for name in re.split(r",(?=\s*[A-Za-z])", text)]
    names = list(dict.fromkeys(name for name in names if name))
    if not names:
        raise UserError("Name at least one method, like ar,dflash,bastion.")
    return names
