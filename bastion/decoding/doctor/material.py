"""What the doctor judges on: the target's own greedy answers, and the features of every token, once for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from bastion.decoding.loop import decode, encode_prompt
from bastion.errors import UserError
from bastion.models.pair import Pair
from bastion.models.target import Target

Say = Callable[[str, float], None]
"""Hears what is being done and the share done, 0 to 1; may raise to give up."""
PROMPTS = (
    "A gardener plants 7 rows of 12 bulbs and 9 of them do not come up. How many flowers bloom? Explain step by step.",
    "Write a Python function that returns the longest word in a sentence.",
    "Explain in three sentences why the sea is salty.",
    "List eight things to pack for a weekend of walking in the hills, one per line.",
    "Write a JSON object that describes a bicycle: its colour, number of gears, price, and two accessories. Write only the JSON.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Show your working.",
    "My bicycle makes a clicking noise when I pedal. What should I check first?",
    "Write a Python function that counts how often each word occurs in a text.",
    "Write the opening paragraph of a story about a lighthouse keeper.",
    "Explain what a hash table is and when to use one.",
)
"""Questions of several kinds, asked one by one."""
ANSWERING = "ddtree:8"
"""Gives the greedy answer, sooner than plain decoding unless the drafter is of no use."""
MOST_BYTES = 1 << 30
"""Features kept of all layers up to this size, else of the layers that tests ask for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt and the target's greedy answer. features: layer -> [tokens, hidden], row i of token i."""

    ids: tuple[int, ...]
    prompt_length: int
    features: dict[int, torch.Tensor]

    def context(self, layer_ids: Sequence[int]) -> torch.Tensor:
        """[1, tokens, layers * hidden]: what a drafter that reads these layers is given of all tokens."""
        return torch.cat([self.features[layer] for layer in layer_ids], dim=-1)[None]

    def anchors(self, depth: int) -> range:
        """Positions to draft at: each answer token with `depth` more behind it."""
        return range(self.prompt_length, max(self.prompt_length, len(self.ids) - depth))


def encoded_prompts(pair: Pair, prompts: Iterable[str] = PROMPTS) -> list[list[int]]:
    """Token ids of the prompts as the pair encodes them. Raises UserError."""
    if pair.tokenizer is None:
        raise UserError("The doctor asks the target questions and this pair has no tokenizer: load one with the target.")
    return [encode_prompt(pair, prompt) for prompt in prompts]


def collect(pair: Pair, prompts: Sequence[Sequence[int]], tokens: int, layers: Iterable[int], say: Say | None = None,
            needed: bool = True) -> list[Answer]:
    """Greedy answers of at most `tokens` tokens and the features of `layers`; answers too short to judge are left out."""
    found = []
    for number, prompt in enumerate(prompts):
        if say is not None:
            say(f"Letting the target answer, prompt {number + 1} of {len(prompts)}", number / len(prompts))
        answer = [token for step in decode(pair, list(prompt), ANSWERING, max_new_tokens=tokens, trace=False) for token in step.emitted]
        if len(answer) > pair.drafter.depth:
            found.append(read(pair.target, [*prompt, *answer], len(prompt), layers))
    if not found and needed:
        raise UserError(f"The target's answers are shorter than the {pair.drafter.depth} tokens the drafter proposes, so nothing can "
                        "be judged: give other prompts or more tokens.")
    return found


def read(target: Target, ids: Sequence[int], prompt_length: int, layers: Iterable[int]) -> Answer:
    """The features of given tokens, one forward over all of them."""
    wanted = sorted(set(layers))
    with watching(target, wanted):
        features = target.prefill(ids, target.new_cache(len(ids))).features
    parts = features[0].split(target.hidden_size, dim=-1)
    return Answer(tuple(ids), prompt_length, dict(zip(wanted, parts, strict=True)))


@contextmanager
def watching(target: Target, layers: Sequence[int]) -> Iterator[None]:
    """The target returns the features of `layers`, and afterwards those it returned before."""
    before = target._watched
    target.watch(layers)
    try:
        yield
    finally:
        target.watch(before)


def layers_to_keep(target: Target, wanted: Iterable[int], tokens: int) -> list[int]:
    """All of the target's layers where `tokens` tokens of them fit, else the wanted ones."""
    size = tokens * target.layers * target.hidden_size * target.dtype.itemsize
    return sorted({*range(target.layers), *wanted}) if size <= MOST_BYTES else sorted(set(wanted))
