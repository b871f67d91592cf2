"""Drafter loaders, filled from `bastion.drafters` so that no arrow points up from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from bastion.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from bastion.models.target import Target
    from bastion.trees import BeamCandidates
    from bastion.trees.level_search import LevelCandidates, LevelSearch


class DraftSession(Protocol):
    """A drafter at work on one sequence; owns the drafter's cache."""

    def draft(self, features: torch.Tensor, root: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Read the context tokens that are new since the last call, then draft behind `root`.

        features: [1, c, layers * hidden], the target's features of the c new context tokens, in
        order. Returns (token ids int64 [depth, k], log-probs float32 [depth, k]), rows sorted.
        """


class TreeDraftSession(Protocol):
    """The same of a drafter that gives trees."""

    def draft_tree(self, features: torch.Tensor, following: Sequence[int], levels: int, k: int) -> BeamCandidates:
        """Read the context tokens that are new since the last call, then draft `levels` levels with k beams.

        features: as above. following: the token behind each of those, the last of which is the root.
        """


class LevelDraftSession(Protocol):
    """The same of a drafter that reads the text itself and answers for every node of a tree."""

    def begin(self, token: int) -> None:
        """The first token of the prompt, which follows no other."""

    def draft_tree(self, features: None, following: Sequence[int], search: LevelSearch) -> LevelCandidates:
        """Read the tokens that are new since the last call, then search behind the last of them, the root."""


class Drafter(Protocol):
    kind: str
    gives: Literal["marginals", "trees", "levels"]
    """One distribution per depth from one pass (DraftSession), a search of its own (TreeDraftSession), or whatever
    levels a method's search asks for (LevelDraftSession)."""
    depth: int
    """Drafted positions of one step."""
    feature_layer_ids: tuple[int, ...]
    """Target layers whose outputs, side by side, make the features."""

    def start(self, capacity: int) -> DraftSession | TreeDraftSession | LevelDraftSession:
        """A fresh session for a sequence of at most `capacity` tokens."""


@dataclass(frozen=True)
class DrafterLoader:
    kind: str
    recognises: Callable[[dict], bool]
    """Whether a drafter's config.json, parsed, is of this kind."""
    load: Callable[[Path, Target], Drafter]
    """Raises UserError when the drafter does not fit the target."""
    gives: str = "marginals"
    """As the drafters that it loads."""


DRAFTER_LOADERS: list[DrafterLoader] = []


def register_drafter(loader: DrafterLoader) -> None:
    DRAFTER_LOADERS[:] = [known for known in DRAFTER_LOADERS if known.kind != loader.kind] + [loader]


def load_drafter(folder: Path, target: Target) -> Drafter:
    """The drafter in `folder`, checked against `target`; UserError when there is none that fits."""
    return loader_of(folder).load(folder, target)


def loader_of(folder: Path) -> DrafterLoader:
    """The loader that recognises the config.json of `folder`; UserError when there is none."""
    import json

    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError
    except OSError:
        raise UserError(f"There is no drafter in {folder}: it has no config.json.") from None
    except ValueError:
        raise UserError(f"{file} is not valid JSON; copy the drafter again.") from None
    for loader in DRAFTER_LOADERS:
        if loader.recognises(config):
            return loader
    kinds = ", ".join(loader.kind for loader in DRAFTER_LOADERS) or "none"
    raise UserError(f"{folder} holds no drafter of a known kind (known: {kinds}); give another folder.")
