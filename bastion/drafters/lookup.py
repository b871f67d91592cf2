"""Drafting without a model: what followed the last tokens when they stood in the prompt or the output before.

Prompt lookup with probabilities that are learned as it goes: how likely a looked-up token comes true, by
how much of the text before it matched and by what the drafter thinks of it. No weights and no torch, so it
works beside every target, with a drafter or alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp, log

import numpy as np

from bastion.trees.grafted import Graft
from bastion.trees.marginals import DraftMarginals

SHORTEST, LONGEST = 1, 12
"""Tokens of a match: below the first nothing is looked up, above the second all count alike."""
CONTINUATIONS = 3
"""Different continuations proposed at once."""
LATEST = 16
"""Places of one match that are looked at, the latest first."""
LEARNING_RATE = 0.2
"""How far one surprise moves the log-odds of all that is looked up in this text."""
UNHEARD = 0.03
"""Stands for the drafter's probability where it drafts no token: below its depth, or without a drafter."""


@dataclass(slots=True)
class HitOdds:
    """The odds that a looked-up token comes true: a logistic model of five numbers, and a shift learned from this text.

    log-odds = start + by_match * log(match) + by_drafter * log-odds(drafter's probability of the token), less for
    another continuation than the best. The numbers were fitted to greedy answers of the default target; a drafter that
    disagrees counts, and so does a text that repeats itself more, or less, than most: every outcome moves
    the shift by the learning rate times (outcome - expected), an online step of logistic regression.
    """

    start: float = 0.67
    by_match: float = 1.24
    by_drafter: float = 0.57
    by_drafter_deeper: float = 0.37   # its marginal says less about a token behind others than about the next one
    another: float = -1.0
    shift: float = 0.0

    def rate(self, match: int, drafted: float | None, deeper: bool = False, another: bool = False) -> float:
        """Probability that the token comes true. match: tokens before it that are as before; drafted: the drafter's
        probability of it, None where it has no say; deeper: not the first of its continuation."""
        believed = min(max(UNHEARD if drafted is None else drafted, 1e-3), 0.99)
        odds = self.start + self.by_match * log(min(match, LONGEST)) + self.shift + self.another * another
        odds += (self.by_drafter_deeper if deeper else self.by_drafter) * log(believed / (1 - believed))
        return 1 / (1 + exp(-odds))

    def learn(self, expected: float, hit: bool) -> None:
        self.shift += LEARNING_RATE * (hit - expected)


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that followed an earlier place; `match` tokens before it equal those at the end of the text."""

    tokens: list[int]
    match: int
    place: int   # 0 for the best
    rates: list[float] = field(default_factory=list)   # of each token, given that all before it and no earlier continuation came true


class NgramLookup:
    """One sequence: the prompt, then what is emitted."""

    def __init__(self, prompt_ids: Iterable[int], longest: int, odds: HitOdds | None = None) -> None:
        self.longest = longest            # tokens of a continuation, at most
        self.odds = odds or HitOdds()
        self.ids: list[int] = []
        self.places: dict[tuple[int, ...], list[int]] = defaultdict(list)  # n-gram -> index after it, rising
        self.open: list[Continuation] = []
        self.extend(prompt_ids)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.ids.append(int(token))
            for size in range(SHORTEST, min(3, len(self.ids)) + 1):
                self.places[tuple(self.ids[-size:])].append(len(self.ids))

    def propose(self, marginals: DraftMarginals | None = None) -> Graft:
        """Continuations of the text as it stands, the longest match first, then the latest. marginals: what the
        drafter thinks of the same positions, when there is one."""
        self.open = self._continuations()
        graft = Graft()
        for found in self.open:
            node = 0
            for depth, (token, drafted) in enumerate(zip(found.tokens, _drafted(marginals, found.tokens), strict=True)):
                unclaimed = graft.unclaimed[node]
                believed = None if drafted is None else min(1.0, drafted / unclaimed)
                rate = self.odds.rate(found.match + depth, believed, depth > 0, found.place > 0 and depth == 0)
                found.rates.append(rate)
                node = graft.put(node, token, rate, drafted or 0.0)
        return graft

    def observe(self, emitted: Iterable[int]) -> None:
        """What came after the last proposal: the odds learn from it, and the text grows by it."""
        truth = [int(token) for token in emitted]
        for found in self.open:
            came_true = True
            for guess, rate, token in zip(found.tokens, found.rates, truth):
                came_true = guess == token
                self.odds.learn(rate, came_true)
                if not came_true:
                    break
            if found.tokens[:1] == truth[:1]:
                break   # what came true leaves nothing to learn about the continuations behind it
        self.open = []
        self.extend(truth)

    def _continuations(self) -> list[Continuation]:
        found: list[tuple[int, int]] = []   # (-match, -place after it): sorts as wanted
        seen = set()
        for size in range(min(3, len(self.ids)), SHORTEST - 1, -1):
            for place in reversed(self.places[tuple(self.ids[-size:])][-LATEST - 1:]):
                if place < len(self.ids) and place not in seen:
                    seen.add(place)
                    found.append((-self._match(place), -place))
            if len(found) >= CONTINUATIONS:
                break
        chosen: list[Continuation] = []
        for match, place in sorted(found):
            tokens = self._following(-place)
            if all(tokens[0] != other.tokens[0] for other in chosen):
                chosen.append(Continuation(tokens, -match, len(chosen)))
            if len(chosen) == CONTINUATIONS:
                break
        return chosen

    def _following(self, place: int) -> list[int]:
        """What stood from `place` on; past the end of the text it goes on repeating itself."""
        tokens = self.ids[place:place + self.longest]
        period = len(self.ids) - place
        while len(tokens) < self.longest:
            tokens.append(tokens[-period])
        return tokens

    def _match(self, place: int) -> int:
        """How many tokens before `place` equal the text's last ones."""
        size = 0
        while size < min(place, LONGEST) and self.ids[place - 1 - size] == self.ids[-1 - size]:
            size += 1
        return size


def _drafted(marginals: DraftMarginals | None, tokens: list[int]) -> list[float | None]:
    """The drafter's probability of each token at its depth; None below its depth, 0 where it is not among the kept."""
    if marginals is None or not marginals.depth:
        return [None] * len(tokens)
    depth = min(marginals.depth, len(tokens))
    places = marginals.token_ids[:depth] == np.array(tokens[:depth])[:, None]
    found = np.exp(np.where(places, marginals.log_probs[:depth], -np.inf).max(axis=1))
    return [*found.tolist(), *[None] * (len(tokens) - depth)]
