"""The methods and their registry: a new one is a builder and one line in METHODS."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from bastion.decoding.adaptive import Bastion, GraftedBastion, marginals_for
from bastion.decoding.protocols import Method
from bastion.decoding.small_lm_methods import small_lm
from bastion.decoding.synthetic import synthetic
from bastion.decoding.tree_methods import Eagle3, drafting_pair
from bastion.errors import UserError
from bastion.latency import Calibration
from bastion.trees import (Budget, DraftMarginals, DraftTree, FixedBudget, Graft, TreeShape, grow_beam,
                           grow_best_first, grow_chain, grow_grafted, grow_static, sequoia_shape, width_shape)

if TYPE_CHECKING:
    from bastion.models.pair import Pair

NO_MARGINALS = DraftMarginals(np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0), dtype=np.float32))


class _Uncalibrated:
    """For methods whose trees do not depend on the device."""

    needs_calibration = False
    calibration = None
    latency = None

    def calibrated(self, calibration: Calibration):
        return self


@dataclass(frozen=True)
class Autoregressive(_Uncalibrated):
    """Plain decoding: the tree is its root."""

    name: str = "ar"
    drafts: bool = False

    def marginals(self, trace: bool) -> int:
        return 0

    def max_nodes(self, depth: int) -> int:
        return 1

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        return grow_chain(NO_MARGINALS, root)


@dataclass(frozen=True)
class SinglePath(_Uncalibrated):
    """DFlash's own verification: the most probable token of each depth, in a row."""

    name: str = "dflash"
    drafts: bool = True

    def marginals(self, trace: bool) -> int:
        return 1

    def max_nodes(self, depth: int) -> int:
        return depth + 1

    def shape(self, depth: int) -> TreeShape:
        return width_shape([1] * max(depth, 1))

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        return grow_chain(marginals, root)


@dataclass(frozen=True)
class BestFirst(_Uncalibrated):
    """Best-first growth under any budget of `bastion.trees`, the same at every step."""

    budget: Budget
    name: str = "best-first"
    drafts: bool = True

    def marginals(self, trace: bool) -> int:
        return marginals_for(self.budget.max_nodes, trace)

    def max_nodes(self, depth: int) -> int:
        return self.budget.max_nodes

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        return grow_best_first(marginals, root, self.budget, trace=trace)


@dataclass(frozen=True)
class Lookup(_Uncalibrated):
    """Looked-up continuations alone, the N most probable nodes beside the root. Needs no drafter."""

    lookup_tokens: int
    name: str = "ngram"
    drafts: bool = False

    def marginals(self, trace: bool) -> int:
        return 0

    def max_nodes(self, depth: int) -> int:
        return self.lookup_tokens + 1

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        return grow_chain(NO_MARGINALS, root)

    def grow_with(self, graft: Graft, marginals: DraftMarginals, root: int, context: int, deepest: int, trace: bool) -> DraftTree:
        return grow_grafted(NO_MARGINALS, graft, root, FixedBudget(self.lookup_tokens + 1), deepest, trace)


@dataclass(frozen=True)
class Beam(_Uncalibrated):
    """N nodes spread evenly over the depths, the most probable paths of each level: best-first's yardstick."""

    nodes: int
    name: str = "beam"
    drafts: bool = True

    def marginals(self, trace: bool) -> int:
        return marginals_for(self.nodes + 1, trace)

    def max_nodes(self, depth: int) -> int:
        return self.nodes + 1

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        return grow_beam(marginals, root, FixedBudget(self.nodes + 1))


@dataclass(frozen=True)
class Widths(_Uncalibrated):
    """SpecInfer's static expansion: so many of the most probable tokens below every node of a depth."""

    widths: tuple[int, ...]
    name: str = "specinfer"
    drafts: bool = True

    def marginals(self, trace: bool) -> int:
        return max(self.widths)

    def max_nodes(self, depth: int) -> int:
        return self.shape(depth).nodes

    def shape(self, depth: int) -> TreeShape:
        return width_shape(self.widths)

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        return grow_static(marginals, root, self.shape(marginals.depth), "widths")


@dataclass(frozen=True)
class Sequoia(_Uncalibrated):
    """The static tree with the most expected tokens for the drafter's acceptance rates by rank, which
    `decode` finds or measures (`with_rates`)."""

    nodes: int
    rates: tuple[float, ...] | None = None
    levels: int = 1
    name: str = "sequoia"
    drafts: bool = True

    def with_rates(self, rates: tuple[float, ...], depth: int) -> Sequoia:
        """For a drafter of this depth and these rates, unless it has its own. Raises UserError when no such tree is."""
        made = replace(self, rates=self.rates or rates, levels=depth + 1)
        made.shape(depth)
        return made

    def marginals(self, trace: bool) -> int:
        return marginals_for(self.nodes + 1, trace)

    def max_nodes(self, depth: int) -> int:
        return self.nodes + 1

    def shape(self, depth: int) -> TreeShape:
        return _sequoia_shape(self.rates or (), self.nodes + 1, self.levels)

    def grow(self, marginals: DraftMarginals, root: int, context: int, trace: bool) -> DraftTree:
        return grow_static(marginals, root, self.shape(marginals.depth), "fixed budget")


@cache
def _sequoia_shape(rates: tuple[float, ...], nodes: int, levels: int) -> TreeShape:
    return sequoia_shape(rates, nodes, levels)


@dataclass(frozen=True)
class MethodEntry:
    """A name in the registry. `build` takes the text behind the colon (None without one)."""

    summary: str
    build: Callable[[str | None], Method] | None
    """None while the method is not built."""
    argument: str | None = None
    """How the part behind the colon is written in help, such as `N`."""
    simulated: bool = False
    """Whether its drafter is made up, so that its runs tell of no pair; they say so."""


def _plain(method: Method) -> Callable[[str | None], Method]:
    def build(argument: str | None) -> Method:
        if argument is not None:
            raise UserError(f"The method {method.name} takes nothing behind a colon; write just {method.name}.")
        return method

    return build


def _ddtree(argument: str | None) -> Method:
    return BestFirst(FixedBudget(_count("ddtree", argument) + 1), name=f"ddtree:{int(argument)}")


def _beam(argument: str | None) -> Method:
    count = _count("beam", argument)
    return Beam(count, name=f"beam:{count}")


def _lookup(argument: str | None) -> Method:
    count = _count("ngram", argument)
    return Lookup(count, name=f"ngram:{count}")


def _eagle3(argument: str | None) -> Method:
    count = _count("eagle3", argument)
    return Eagle3(count, name=f"eagle3:{count}")


def _sequoia(argument: str | None) -> Method:
    count = _count("sequoia", argument)
    return Sequoia(count, name=f"sequoia:{count}")


def _specinfer(argument: str | None) -> Method:
    parts = (argument or "").split(",")
    if not all(re.fullmatch(r"\d{1,3}", part.strip()) and int(part) for part in parts):
        raise UserError("Write the method specinfer with the number of children at each depth, such as specinfer:4,2,2,1.")
    widths = tuple(int(part) for part in parts)
    nodes = level = 1
    for width in widths:
        level *= width
        nodes += level
    if nodes > 8192:
        raise UserError(f"specinfer:{argument} is a tree of {nodes} nodes; ask for 8192 at most.")
    return Widths(widths, name="specinfer:" + ",".join(map(str, widths)))


def _count(name: str, argument: str | None) -> int:
    if argument is None or not re.fullmatch(r"\d{1,5}", argument) or not 1 <= int(argument) <= 8191:
        raise UserError(f"Write the method {name} with its number of nodes, 1 to 8191, such as {name}:16.")
    return int(argument)


METHODS: dict[str, MethodEntry] = {
    "ar": MethodEntry("plain autoregressive decoding, the yardstick", _plain(Autoregressive())),
    "dflash": MethodEntry("the drafter's single most probable path", _plain(SinglePath())),
    "bastion": MethodEntry("best-first tree, stopped by the device's latency", _plain(Bastion())),
    "bastion+ngram": MethodEntry("bastion with looked-up continuations as further candidates", _plain(GraftedBastion())),
    "ddtree": MethodEntry("best-first tree of N nodes beside the root", _ddtree, "N"),
    "beam": MethodEntry("level-wise beam of N nodes beside the root", _beam, "N"),
    "sequoia": MethodEntry("static tree of N nodes from measured acceptance rates", _sequoia, "N"),
    "specinfer": MethodEntry("static expansion widths per depth", _specinfer, "a,b,c"),
    "eagle3": MethodEntry("EAGLE-3's dynamic tree, the N best nodes beside the root", _eagle3, "N"),
    "small-lm": MethodEntry("a small language model's tree, the N best nodes beside the root, or widths per depth", small_lm, "N"),
    "ngram": MethodEntry("what followed the same tokens before, N nodes, no drafter", _lookup, "N"),
    "synthetic": MethodEntry("simulated: a made-up drafter that agrees with the target at the rate R, or one rate per depth; bastion's budget",
                             synthetic, "R", simulated=True),
}


def resolve_method(method: str | Method) -> Method:
    """A registry name such as `ddtree:16` or `bastion@table`, or a built method, which is returned as it is.

    Behind `@` stands the latency estimator to grow by, of a method that takes one. Raises UserError.
    """
    if not isinstance(method, str):
        if callable(getattr(method, "grow", None)):
            return method
        raise UserError(f"A method is a name ({_built()}) or a built method such as BestFirst(budget), not {method!r}.")
    name, colon, argument = method.strip().partition(":")
    name, at, estimator = name.partition("@")
    entry = METHODS.get(name)
    if entry is None:
        raise UserError(f"There is no method {name!r}; choose one of {_built()}.")
    if entry.build is None:
        raise UserError(f"The method {name} ({entry.summary}) is not built yet; choose one of {_built()}.")
    built = entry.build(argument if colon else None)
    if not at:
        return built
    if not hasattr(built, "with_estimator"):
        raise UserError(f"The method {name} does not grow by the device's latency; an estimator goes with bastion, such as bastion@table.")
    return built.with_estimator(estimator)


def drafter_depth(method: str | Method, pair: Pair) -> int | None:
    """Positions that the method's drafter drafts at once; the pair's own drafter's where the method drafts nothing.
    UserError when the pair has no drafter for it."""
    drafter = drafting_pair(resolve_method(method), pair).drafter
    return drafter.depth if drafter is not None else None


def is_simulated(method: str) -> bool:
    """Whether a method of this name makes its drafts up."""
    entry = METHODS.get(method.strip().partition(":")[0])
    return entry is not None and entry.simulated


def _built() -> str:
    return ", ".join(
        f"{name}:{entry.argument}" if entry.argument else name for name, entry in METHODS.items() if entry.build
    )
