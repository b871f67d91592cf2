"""Measure methods side by side on the same prompts, and check that they emit the same tokens.

Nothing here knows a model: the caller hands in what decodes. Every prompt is decoded by every
method before the next prompt begins, and the order changes with each prompt and repeat, so that a
machine that slows down or warms up does so for all methods alike. Plain decoding (`ar`) is always
among them: it is the yardstick of the speedups and of the emitted ids. A method that the pair cannot
run is found out before anything is measured; its rows say why, and the others are measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from bastion.analysis import parting
from bastion.errors import UserError
from bastion.jobs.prompt_files import Conversation, PromptSet
from bastion.step import StepRecord

YARDSTICK = "ar"
WARM_UP_TOKENS = 8
NEAR_TIE = 1e-3
"""Below this top-2 logit gap, rounding in float32 may decide between the target's two best tokens."""

Order = Literal["turning", "shuffled"]
"""How the methods of one prompt follow each other: each prompt begins one further in the list, or all drawn anew."""

Messages = list[dict[str, str]]
Decode = Callable[[Messages, str, int | None], list[StepRecord]]
"""(messages, method, token limit or None for the asked one) -> every record of the decode."""
Say = Callable[[str, float], None]


@dataclass(slots=True)
class Tally:
    """What one method has done on one prompt set so far."""

    method: str
    tokens: int = 0             # emitted by decode steps; the prefill's token is left out, as its time is
    steps: int = 0
    nodes: int = 0
    seconds: float = 0.0        # of decode steps, all stages
    seconds_prefill: float = 0.0
    prompts: int = 0
    identical: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)

    def add(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            if record.kind == "prefill":
                self.seconds_prefill += record.seconds.total
                continue
            self.tokens += len(record.emitted)
            self.steps += 1
            self.nodes += record.nodes
            self.seconds += record.seconds.total

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None


def compare_methods(decode: Decode, text_of: Callable[[list[int]], str], prompt_sets: Sequence[PromptSet], methods: Sequence[str],
                    greedy: bool, say: Say | None = None, order: Order = "turning", repeats: int = 1, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of `compare --json`: one per prompt set and method, in the order they were given.

    A conversation of several turns continues with the yardstick's answers, so that all methods
    see the same prompt at every turn. Identity with the yardstick is counted per conversation and
    only for a greedy decode (None otherwise: two samples need not agree). repeats: every prompt is
    decoded so often by every method, in an order of its own; tokens and times are summed.
    Raises UserError when no method but the yardstick can run.
    """
    report = say or (lambda _words, _share: None)
    names = list(methods) if YARDSTICK in methods else [YARDSTICK, *methods]
    refused = _warm_up(decode, _user(prompt_sets[0].conversations[0].turns[0]), names, report)
    running = [name for name in names if name not in refused]
    total = sum(len(prompt_set.conversations) for prompt_set in prompt_sets) * repeats
    orders, done = _orders(running, order, seed), 0
    rows: list[dict[str, Any]] = []
    for prompt_set in prompt_sets:
        tallies = {name: Tally(name) for name in running}
        for conversation in prompt_set.conversations:
            same = dict.fromkeys(running, True)
            for repeat in range(repeats):
                report(f"{prompt_set.name}: prompt {conversation.id}" + (f", repeat {repeat + 1} of {repeats}" if repeats > 1 else ""), done / total)
                parted = _one_conversation(decode, text_of, conversation, orders(done), tallies)
                for name, differences in parted.items():
                    if same[name]:   # a later repeat of the same greedy decode tells nothing new
                        tallies[name].differences += differences
                    same[name] = same[name] and not differences
                done += 1
            for name in running:
                tallies[name].prompts += 1
                tallies[name].identical += same[name]
        rows += [_refused_row(name, refused[name], prompt_set) if name in refused else _row(tallies[name], tallies[YARDSTICK], prompt_set, greedy)
                 for name in names]
    report("Compared", 1.0)
    return rows


def _warm_up(decode: Decode, message: dict[str, str], names: Sequence[str], report: Say) -> dict[str, str]:
    """A few tokens with each method, so that kernels are chosen and the device is calibrated before the clock
    counts. Returns {method: why this pair cannot run it}; raises UserError when only the yardstick is left."""
    refused: dict[str, str] = {}
    for name in names:
        report(f"Warming up {name}", 0.0)
        try:
            decode([message], name, WARM_UP_TOKENS)
        except UserError as error:
            if name == YARDSTICK:
                raise
            refused[name] = str(error)
    if refused and len(refused) == len(names) - 1:
        raise UserError(" ".join(dict.fromkeys(refused.values())))
    for name, why in refused.items():
        report(f"{name} is left out: {why}", 0.0)
    return refused


def _orders(names: Sequence[str], order: Order, seed: int) -> Callable[[int], list[str]]:
    """The order of the methods for the n-th decode of a prompt."""
    if order == "turning":
        return lambda number: [*names[number % len(names):], *names[: number % len(names)]]
    drawn = random.Random(seed)
    return lambda _number: drawn.sample(list(names), len(names))


def _one_conversation(decode: Decode, text_of: Callable[[list[int]], str], conversation: Conversation, order: Sequence[str],
                      tallies: dict[str, Tally]) -> dict[str, list[dict[str, Any]]]:
    """Decode all turns with every method into the tallies; returns where each parts from the yardstick."""
    messages: Messages = []
    parted: dict[str, list[dict[str, Any]]] = {name: [] for name in order}
    for number, words in enumerate(conversation.turns):
        messages = [*messages, _user(words)]
        outcomes = {name: decode(messages, name, None) for name in order}
        reference = _ids(outcomes[YARDSTICK])
        for name, records in outcomes.items():
            tallies[name].add(records)
            difference = first_difference(outcomes[YARDSTICK], records)
            if difference is not None:
                parted[name].append({"prompt": conversation.id, "turn": number, **difference})
        messages = [*messages, {"role": "assistant", "content": text_of(reference)}]
    return parted


def first_difference(reference: Sequence[StepRecord], other: Sequence[StepRecord]) -> dict[str, Any] | None:
    """Where two decodes of one prompt part: {"position", "top2_gap"}, or None when their ids are equal.

    `position` counts emitted tokens from 0; `top2_gap` is the target's top-2 logit gap there as
    the reference saw it (None past its end): both decodes had read the same tokens until then.
    """
    position = parting.first_difference(_ids(reference), _ids(other))
    if position is None:
        return None
    gaps = [float(gap) for record in reference for gap in record.top2_gaps]
    return {"position": position, "top2_gap": gaps[position] if position < len(gaps) else None}


def _row(tally: Tally, yardstick: Tally, prompt_set: PromptSet, greedy: bool) -> dict[str, Any]:
    speed, plain = tally.tokens_per_second, yardstick.tokens_per_second
    return {
        "method": tally.method,
        "prompt_set": prompt_set.name,
        "prompts": tally.prompts,
        "tau": tally.tokens / tally.steps if tally.steps else None,
        "tokens_per_second": speed,
        "speedup": speed / plain if speed is not None and plain else None,
        "nodes_mean": tally.nodes / tally.steps if tally.steps else None,
        "identical_to_ar": tally.identical if greedy else None,
        "differences": tally.differences if greedy else [],
        "near_ties": near_ties(tally.differences) if greedy else None,
        "refused": None,
        "tokens": tally.tokens,
        "steps": tally.steps,
        "seconds_decode": tally.seconds,
        "seconds_prefill": tally.seconds_prefill,
    }


def _refused_row(name: str, why: str, prompt_set: PromptSet) -> dict[str, Any]:
    """The row of a method that this pair cannot run: no numbers, and the reason."""
    numbers = dict.fromkeys(("tau", "tokens_per_second", "speedup", "nodes_mean", "identical_to_ar", "near_ties"))
    return {"method": name, "prompt_set": prompt_set.name, "prompts": 0, **numbers, "differences": [], "refused": why}


def near_ties(differences: Sequence[dict[str, Any]]) -> int:
    """How many prompts part only where the target's two best logits are closer than rounding."""
    gaps: dict[str, list[float | None]] = {}
    for difference in differences:
        gaps.setdefault(difference["prompt"], []).append(difference["top2_gap"])
    return sum(all(gap is not None and gap < NEAR_TIE for gap in found) for found in gaps.values())


def means_over_sets(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per method: tau, speedup and nodes as means of the sets', prompts and identical ones as sums.
    Methods that could not run are left out."""
    means = []
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name and row["refused"] is None]
        if mine:
            mean = {key: fmean(values) if (values := [row[key] for row in mine if row[key] is not None]) else None
                    for key in ("tau", "tokens_per_second", "speedup", "nodes_mean")}
            sums = {key: None if mine[0][key] is None else sum(row[key] for row in mine) for key in ("prompts", "identical_to_ar", "near_ties")}
            means.append({"method": name, "sets": len(mine), **mean, **sums})
    return means


def _ids(records: Sequence[StepRecord]) -> list[int]:
    return [int(token) for record in records for token in record.emitted]


def _user(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}
