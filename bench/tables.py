"""A table as a bench prints it, and the same in markdown with the machine, the versions and the command above it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bastion.cli.output import table

PLACES = {"--prompts": "FOLDER", "--json": "FILE", "--markdown": "FILE"}
"""Options whose value is a place on one machine, and what stands for it in a report."""


@dataclass(frozen=True, slots=True)
class Table:
    """A heading line, columns, and sentences below; without rows the sentences alone."""

    header: list[str]
    rows: list[list[str]]
    above: str = ""
    below: list[str] = field(default_factory=list)

    def text(self) -> str:
        return "\n".join([*filter(None, [self.above]), *([table(self.header, self.rows)] if self.rows else []), *self.below])

    def markdown(self) -> str:
        lines = [_cells(self.header), _cells(["---", *["---:"] * (len(self.header) - 1)]), *map(_cells, self.rows)] if self.rows else []
        parts = [self.above, "\n".join(lines), "\n".join(f"- {words}" for words in self.below)]
        return "\n\n".join(filter(None, parts))


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def command_words(module: str, options: Sequence[str]) -> str:
    """The command to type, with a word in place of every path."""
    words, place = [], ""
    for word in options:
        name, sign, _ = word.partition("=")
        if place:
            words.append(place)
        elif sign and name in PLACES:
            words.append(f"{name}={PLACES[name]}")
        else:
            words.append(shlex.quote(word))
        place = "" if place else PLACES.get(word, "")
    return " ".join(["python -m", module, *words])


def machine_words(facts: dict[str, Any]) -> str:
    """Processor, pair, number type and versions in one line."""
    drafter = f" with {facts['drafter']}" if facts.get("drafter") else ""
    return (f"{facts['processor']}, {facts['cores']} cores; {facts['target']}{drafter}, {facts['dtype']} on {facts['device']}; "
            + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))


def report(command: str, facts: dict[str, Any], when: str, sections: Sequence[tuple[str, Sequence[Table]]]) -> str:
    """Markdown: the command, the machine, then a heading and the tables of every stage. when: a sentence on the date and the time taken."""
    parts = [f"    {command}", f"{machine_words(facts)}. {when}"]
    for name, tables in sections:
        parts += [f"### {name}", *(one.markdown() for one in tables)]
    return "\n\n".join(parts) + "\n"
