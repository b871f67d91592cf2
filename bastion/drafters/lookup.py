"""Drafting without a model: what followed the last tokens when they stood in the prompt or the output before.

Prompt lookup with the probabilities learned as it goes: how often a looked-up token came true, by how
much of the text before it matched. No weights and no torch, so it works beside every target.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from bastion.trees.grafted import Graft

SHORTEST, LONGEST = 1, 12
"""Tokens of a match: below the first nothing is looked up, above the second all count alike."""
CONTINUATIONS = 3
"""Different continuations proposed at once."""
LATEST = 16
"""Places of one match that are looked at, the latest first."""
PRIOR_STRENGTH = 6.0
"""Trials that the first guess of a hit rate is worth."""


@dataclass(slots=True)
class HitRates:
    """How often the first continuation, the second, ... came true, by length of the match."""

    hits: list[list[float]] = field(default_factory=lambda: [[0.0] * (LONGEST + 1) for _ in range(CONTINUATIONS)])
    trials: list[list[float]] = field(default_factory=lambda: [[0.0] * (LONGEST + 1) for _ in range(CONTINUATIONS)])

    def rate(self, place: int, match: int) -> float:
        match = min(match, LONGEST)
        return (self.hits[place][match] + PRIOR_STRENGTH * _first_guess(place, match)) / (
            self.trials[place][match] + PRIOR_STRENGTH)

    def count(self, place: int, match: int, hit: bool) -> None:
        match = min(match, LONGEST)
        self.trials[place][match] += 1
        self.hits[place][match] += hit


def _first_guess(place: int, match: int) -> float:
    """Longer matches come true more often, and a second continuation less often than the latest."""
    return (0.15, 0.35, 0.55, 0.65, 0.72, 0.78)[min(match, 6) - 1] * (1.0, 0.35, 0.2)[place] if match else 0.0


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that followed an earlier place; `match` tokens before it equal those at the end of the text."""

    tokens: list[int]
    match: int
    place: int   # 0 for the best


class NgramLookup:
    """One sequence: the prompt, then what is emitted."""

    def __init__(self, prompt_ids: Iterable[int], longest: int, rates: HitRates | None = None) -> None:
        self.longest = longest            # tokens of a continuation, at most
        self.rates = rates or HitRates()
        self.ids: list[int] = []
        self.places: dict[tuple[int, ...], list[int]] = defaultdict(list)  # n-gram -> index after it, rising
        self.open: list[Continuation] = []
        self.extend(prompt_ids)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.ids.append(int(token))
            for size in range(SHORTEST, min(3, len(self.ids)) + 1):
                self.places[tuple(self.ids[-size:])].append(len(self.ids))

    def propose(self) -> Graft:
        """Continuations of the text as it stands, the longest match first, then the latest."""
        self.open = self._continuations()
        graft = Graft()
        for found in self.open:
            graft.add(found.tokens, [self.rates.rate(found.place if depth == 0 else 0, found.match + depth)
                                     for depth in range(len(found.tokens))])
        return graft

    def observe(self, emitted: Iterable[int]) -> None:
        """What came after the last proposal: the rates learn from it, and the text grows by it."""
        truth = [int(token) for token in emitted]
        for found in self.open:
            for depth, (guess, token) in enumerate(zip(found.tokens, truth)):
                self.rates.count(found.place if depth == 0 else 0, found.match + depth, guess == token)
                if guess != token:
                    break
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
