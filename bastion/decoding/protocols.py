"""What the loop asks of a method."""

from __future__ import annotations

from typing import Protocol

from bastion.latency import Calibration, Estimator
from bastion.trees import BeamCandidates, DraftMarginals, DraftTree, Graft, TreeShape
from bastion.trees.level_search import LevelCandidates, LevelSearch
from bastion.trees.sampled import Draw


class Method(Protocol):
    """How a step's tree is grown."""

    @property
    def name(self) -> str: ...

    @property
    def drafts(self) -> bool:
        """Whether the drafter is asked at all."""

    def marginals(self, trace: bool) -> int:
        """Tokens wanted per depth from the drafter."""

    @property
    def needs_calibration(self) -> bool:
        """Whether it grows by the device's latency, so that one must be made when none is stored."""

    @property
    def calibration(self) -> Calibration | None:
        """The one it brings along, if any."""

    def calibrated(self, calibration: Calibration) -> Method:
        """The same method with what the device was measured to take; itself when it makes no use of that."""

    @property
    def latency(self) -> Estimator | None:
        """What it grows by in this decode, when that is not the calibrated roofline."""

    def max_nodes(self, depth: int) -> int:
        """The most nodes a tree can have, root included, for a drafter of this depth."""

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        """The tree to verify behind `context` committed tokens and the root."""


class LookupMethod(Method, Protocol):
    """A method that also takes what stood after the same tokens before (`bastion.drafters.lookup`)."""

    @property
    def lookup_tokens(self) -> int:
        """Tokens of a looked-up continuation, at most."""

    def grow_with(self, graft: Graft, marginals: DraftMarginals, root: int, context: int, deepest: int, trace: bool) -> DraftTree:
        """Like `grow`, from both sources; no node lies deeper than `deepest`."""


class TreeMethod(Method, Protocol):
    """A method whose candidates a drafter searches for (`Drafter.gives` is "trees")."""

    def search(self, deepest: int) -> tuple[int, int]:
        """Levels and beams to draft where no node may lie deeper than `deepest`."""

    def grow_drafted(self, candidates: BeamCandidates, root: int, trace: bool) -> DraftTree:
        """Like `grow`, from what was searched."""


class LevelMethod(Method, Protocol):
    """A method that asks the drafter level by level (`Drafter.gives` is "levels")."""

    def search(self, deepest: int, draw: Draw | None = None) -> tuple[LevelSearch]:
        """What to search for where no node may lie deeper than `deepest`; draw: by what children are drawn, if they are."""

    def grow_drafted(self, candidates: LevelCandidates, root: int, trace: bool) -> DraftTree:
        """Like `grow`, from what was searched."""


class DrawnMethod(Method, Protocol):
    """A method whose trees have a fixed shape, so that children can be drawn as well as chosen."""

    def shape(self, depth: int) -> TreeShape:
        """The shape for a drafter of this depth."""
