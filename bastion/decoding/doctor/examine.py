"""The examination: every test of the registry on a live pair, and the report of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bastion.decoding.doctor.bench import Bench
from bastion.decoding.doctor.drafting import Change, Variant
from bastion.decoding.doctor.material import PROMPTS, Answer, Say, collect, encoded_prompts, layers_to_keep
from bastion.decoding.doctor.registry import CHECKS, Check
from bastion.decoding.doctor.replay import Proposals, lengths, log_likelihoods, propose
from bastion.decoding.doctor.verdict import Gain, paired
from bastion.errors import UserError
from bastion.models.pair import Pair

TOKENS, NODES = 48, 16
SCREENED = (1, 3, 6)
"""Answers after which a change that does not help is given up; after the first only one that clearly does much harm."""
MUCH = 0.3
"""Tokens a step: the whole interval below minus this on a single answer is much harm."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One change measured: tau and log-likelihood with and without it; both None where it changes nothing at all."""

    test: str
    label: str
    todo: str
    same: bool
    tau: Gain | None = None
    likelihood: Gain | None = None
    trusted: bool = True
    """Whether a gain of likelihood alone tells of a fault."""
    least_gain: float = 0.0

    @property
    def found(self) -> bool:
        """The change clearly raises tau, or clearly raises the likelihood of the target's tokens and lowers no tau."""
        if self.tau is None or self.tau.gain < self.least_gain:
            return False
        return self.tau.clear_tau or (self.trusted and self.likelihood.clear_likelihood and self.tau.gain >= 0)

    @property
    def weight(self) -> tuple[float, ...]:
        """Findings in order: those whose tau is clear, by tau; then by likelihood."""
        return (self.tau.clear_tau, self.tau.gain if self.tau.clear_tau else self.likelihood.gain)


@dataclass(frozen=True, slots=True)
class Report:
    """tau of the pair as loaded, and every change tried, grouped by test in registry order."""

    pair: str
    tau: float
    positions: int
    nodes: int
    outcomes: tuple[Outcome, ...]
    not_tested: dict[str, str]
    """test -> why it could not be made."""
    seconds: float = field(default=0.0)

    @property
    def findings(self) -> list[Outcome]:
        """The best change of each test that found something, most tau gained first."""
        best: dict[str, Outcome] = {}
        for outcome in self.outcomes:
            if outcome.found and (outcome.test not in best or outcome.weight > best[outcome.test].weight):
                best[outcome.test] = outcome
        return sorted(best.values(), key=lambda one: one.weight, reverse=True)

    @property
    def healthy(self) -> list[str]:
        """Tests in which no change helped."""
        found = {one.test for one in self.findings}
        return [name for name in dict.fromkeys(one.test for one in self.outcomes) if name not in found]


def examine(pair: Pair, prompts: Sequence[str] = PROMPTS, tokens: int = TOKENS, nodes: int = NODES,
            tests: Sequence[Check] = CHECKS, say: Say | None = None, answers: Sequence[Answer] | None = None,
            drafter_folder: Path | None = None, contrasts: dict | None = None) -> Report:
    """Measure tau at every position of the target's own answers, as loaded and under each change. Raises UserError.

    say: heard at every step, may raise to give up. answers: those of `collect`, and contrasts: an empty dict at
    first, so that several drafters of one target share them. drafter_folder: where the drafter came from, if that
    is not what the pair's preset says.
    """
    contrasts = {} if contrasts is None else contrasts
    say, began = say or (lambda words, share: None), time.monotonic()
    check_judgeable(pair)
    # over all ids, so that a test can see what becomes of a token that is not among the frequent ones
    pair = replace(pair, drafter=pair.drafter.with_every_id())
    if answers is None:
        asked = encoded_prompts(pair, prompts)
        keep = layers_to_keep(pair.target, _layers_read(pair), sum(map(len, asked)) + tokens * len(asked))
        answers = collect(pair, asked, tokens, keep, lambda words, share: say(words, 0.4 * share))
    bench = Bench(pair, tuple(prompts), tuple(answers), tokens, drafter_folder)
    baseline = Measured(pair, list(answers), Change(), nodes)
    baseline.extend(len(answers))
    outcomes, refused = [], {}
    for number, test in enumerate(tests):
        try:
            variants = test.variants(bench)
        except UserError as error:
            refused[test.name] = str(error)
            continue
        if not variants:
            refused[test.name] = test.absent
        for step, variant in enumerate(variants):
            if test.name in refused:
                break
            say(f"Testing: {test.title}, {variant.label}", 0.4 + 0.6 * (number + step / len(variants)) / len(tests))
            try:
                outcomes.append(_outcome(pair, test, variant, baseline, nodes, contrasts))
            except UserError as error:
                refused[test.name] = str(error)
    return Report(pair.name, float(np.concatenate(baseline.tau).mean()), sum(map(len, baseline.tau)), nodes, tuple(outcomes), refused,
                  time.monotonic() - began)


def check_judgeable(pair: Pair) -> None:
    """UserError for a pair whose drafter cannot be examined so."""
    drafter = pair.drafter
    if drafter is None:
        raise UserError("This pair has no drafter, so there is no acceptance to examine: give one with --drafter.")
    if drafter.kind != "dflash":
        raise UserError(f"The doctor examines DFlash drafters, and this one is of the kind {drafter.kind}.")


def _layers_read(pair: Pair) -> set[int]:
    now = pair.drafter.feature_layer_ids
    from bastion.decoding.doctor.outputs import layer_choices
    return {layer for ids in (now, *layer_choices(pair)) for layer in ids}


@dataclass
class Measured:
    """Emitted tokens and log-likelihoods at every position of the answers measured so far under one change."""

    pair: Pair
    answers: list[Answer]
    change: Change
    nodes: int
    proposals: list[Proposals] = field(default_factory=list)
    tau: list[np.ndarray] = field(default_factory=list)
    likelihood: list[np.ndarray] = field(default_factory=list)

    def extend(self, count: int, baseline: Measured | None = None) -> bool:
        """Measure up to `count` answers; False when the change changes nothing."""
        for place in range(len(self.tau), min(count, len(self.answers))):
            answer = self.answers[place]
            if self.change.only_ids and baseline is not None:
                loaded = baseline.proposals[place]
                made = Proposals(self.change.ids(loaded.ids, loaded.own), loaded.log_probs, loaded.own)
            else:
                made = propose(self.pair.drafter, answer, self.change)
            if made is None:
                return False
            self.proposals.append(made)
            self.tau.append(lengths(made, answer, self.nodes))
            self.likelihood.append(log_likelihoods(made, answer))
        return True

    def against(self, other: Measured) -> tuple[Gain, Gain]:
        n, stretch = len(self.tau), self.pair.drafter.depth
        return paired(other.tau[:n], self.tau, stretch), paired(other.likelihood[:n], self.likelihood, stretch)


def _outcome(pair: Pair, test: Check, variant: Variant, baseline: Measured, nodes: int, contrasts: dict) -> Outcome:
    change = variant.change
    made = {"test": test.name, "label": variant.label, "todo": variant.todo, "trusted": test.trusted and variant.trusted,
            "least_gain": variant.least_gain}
    answers = baseline.answers
    if change.answers is not None:
        key = (id(pair.target), pair.tokenizer.backend.chat_template, variant.label)
        contrasted = contrasts[key] if key in contrasts else contrasts.setdefault(key, change.answers())
        if contrasted is None:
            return Outcome(same=True, **made)
        before, answers = contrasted
        if not before:
            raise UserError("The target's answers under the change are too short to judge.")
        baseline = Measured(pair, before, Change(), nodes)
    measured = Measured(pair, answers, change, nodes)
    for count in (*SCREENED, len(answers)) if change.answers is None else (len(answers),):
        baseline.extend(count)
        if not measured.extend(count, baseline):
            return Outcome(same=True, **made)
        tau, likelihood = measured.against(baseline)
        if tau.high < -MUCH:
            break
        if count > SCREENED[0] and (
                tau.high < 0 or (likelihood.high < 0 and tau.gain < 0) or (tau.hopeless_tau and likelihood.hopeless_likelihood)):
            break  # it does harm or nothing: not measured further
    return Outcome(same=False, tau=tau, likelihood=likelihood, **made)
