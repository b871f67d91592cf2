"""Drafters that a pair has beside its own: read when a method first asks for one of their kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bastion.models.registry import Drafter, loader_of

if TYPE_CHECKING:
    from bastion.models.target import Target
    from bastion.models.tokenizer import Tokenizer


@dataclass
class Beside:
    """The drafter in `folder`; `gives` as in `Drafter`, known from its config.json alone."""

    folder: Path
    name: str
    gives: str
    kind: str
    _read: list[Drafter] = field(default_factory=list, repr=False)

    def drafter(self, target: Target, tokenizer: Tokenizer | None) -> Drafter:
        """UserError when it does not fit."""
        if not self._read:
            self._read.append(read_drafter(self.folder, target, tokenizer))
        return self._read[0]


def beside(folder: Path, name: str) -> Beside:
    """UserError when the folder holds no drafter of a known kind."""
    loader = loader_of(folder)
    return Beside(folder, name, loader.gives, loader.kind)


def read_drafter(folder: Path, target: Target, tokenizer: Tokenizer | None) -> Drafter:
    """The drafter in `folder`, checked against the target and, where it has a tokenizer, against the target's. UserError."""
    drafter = loader_of(folder).load(folder, target)
    check = getattr(drafter, "check_tokenizer", None)
    if check is not None:
        check(tokenizer)
    return drafter
