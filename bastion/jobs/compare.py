"""Measure methods side by side on the same prompts, and check that they emit the same tokens.

Nothing here knows a model: the caller hands in what decodes. Every prompt is decoded by every
method before the next prompt begins, and the order turns with each prompt, so that a machine that
slows down or warms up does so for all methods alike. Plain decoding (`ar`) is always among them:
it is the yardstick of the speedups and of the emitted ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bastion.analysis import parting
from bastion.jobs.prompt_files import Conversation, PromptSet
from bastion.step import StepRecord

YARDSTICK = "ar"
WARM_UP_TOKENS = 8

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
                    greedy: bool, say: Say | None = None) -> list[dict[str, Any]]:
    """Rows of `compare --json`: one per prompt set and method, in the order they were given.

    A conversation of several turns continues with the yardstick's answers, so that all methods
    see the same prompt at every turn. Identity with the yardstick is counted per conversation and
    only for a greedy decode (None otherwise: two samples need not agree).
    """
    report = say or (lambda _words, _share: None)
    names = list(methods) if YARDSTICK in methods else [YARDSTICK, *methods]
    first = prompt_sets[0].conversations[0]
    for name in names:  # kernels are chosen, and the device calibrated, before the clock counts
        report(f"Warming up {name}", 0.0)
        decode([_user(first.turns[0])], name, WARM_UP_TOKENS)
    total, done = sum(len(prompt_set.conversations) for prompt_set in prompt_sets), 0
    rows: list[dict[str, Any]] = []
    for prompt_set in prompt_sets:
        tallies = {name: Tally(name) for name in names}
        for conversation in prompt_set.conversations:
            turn = done % len(names)
            report(f"{prompt_set.name}: prompt {conversation.id}", done / total)
            _one_conversation(decode, text_of, conversation, names[turn:] + names[:turn], tallies)
            done += 1
        rows += [_row(tallies[name], tallies[YARDSTICK], prompt_set, greedy) for name in names]
    report("Compared", 1.0)
    return rows


def _one_conversation(decode: Decode, text_of: Callable[[list[int]], str], conversation: Conversation, order: Sequence[str],
                      tallies: dict[str, Tally]) -> None:
    messages: Messages = []
    same = dict.fromkeys(order, True)
    for number, words in enumerate(conversation.turns):
        messages = [*messages, _user(words)]
        outcomes = {name: decode(messages, name, None) for name in order}
        reference = _ids(outcomes[YARDSTICK])
        for name, records in outcomes.items():
            tallies[name].add(records)
            difference = first_difference(outcomes[YARDSTICK], records)
            if difference is not None:
                same[name] = False
                tallies[name].differences.append({"prompt": conversation.id, "turn": number, **difference})
        messages = [*messages, {"role": "assistant", "content": text_of(reference)}]
    for name in order:
        tallies[name].prompts += 1
        tallies[name].identical += same[name]


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
        "tokens": tally.tokens,
        "steps": tally.steps,
        "seconds_decode": tally.seconds,
        "seconds_prefill": tally.seconds_prefill,
    }


def _ids(records: Sequence[StepRecord]) -> list[int]:
    return [int(token) for record in records for token in record.emitted]


def _user(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}
