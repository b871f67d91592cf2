"""Gather training data: answers with features, written shard by shard until a goal is met.

Resumable: a shard is named after its worker and number, and each says which prompts it holds.
Several workers, each on its own cores, share one folder.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from bastion.drafters.training.continuations import batches_by_length, continue_batch, features_of_texts
from bastion.drafters.training.prompts import NearDuplicates, Opener, Prompt
from bastion.drafters.training.shards import Dialogue, write_shard
from bastion.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Teacher:
    """The target as a source of answers."""

    model: torch.nn.Module
    tokenizer: Tokenizer
    layer_ids: tuple[int, ...]
    stop_ids: frozenset[int]
    max_new_tokens: int = 144
    batch: int = 64


def answers(teacher: Teacher, prompts: list[Prompt]) -> Iterator[Dialogue]:
    """Greedy answers with features to all prompts, in batches of similar length."""
    ids = [teacher.tokenizer.encode_prompt(prompt.text) for prompt in prompts]
    for chosen in batches_by_length([len(i) for i in ids], teacher.batch):
        batch = [ids[i] for i in chosen]
        done = continue_batch(teacher.model, batch, teacher.max_new_tokens, teacher.stop_ids, teacher.layer_ids)
        for i, prompt, answer in zip(chosen, batch, done, strict=True):
            whole = torch.tensor(prompt + answer.ids)
            yield Dialogue(whole, len(prompt), answer.features, prompts[i].id)


def reread(teacher: Teacher, rows: Iterable[dict], batch: int = 6) -> Iterator[Dialogue]:
    """Features for dialogues whose answers exist already (`prompt_ids`, `output_ids`)."""
    rows = list(rows)
    for chosen in batches_by_length([len(r["prompt_ids"]) + len(r["output_ids"]) for r in rows], batch):
        whole = [rows[i]["prompt_ids"] + rows[i]["output_ids"] for i in chosen]
        for i, ids, features in zip(
            chosen, whole, features_of_texts(teacher.model, whole, teacher.layer_ids), strict=True
        ):
            yield Dialogue(torch.tensor(ids), len(rows[i]["prompt_ids"]), features, rows[i].get("source", ""))


def write_turns(
    teacher: Teacher, openers: list[Opener], avoid: NearDuplicates, seed: int, longest: int = 96
) -> list[Prompt]:
    """User turns that the target writes itself from their first words; unfinished or near ones are dropped."""
    user_turn = [teacher.tokenizer.encode_opening(opener.text) for opener in openers]
    written = continue_batch(teacher.model, user_turn, longest, teacher.stop_ids, top_p=0.95, seed=seed)
    turns = []
    for number, (opener, answer) in enumerate(zip(openers, written, strict=True)):
        finished = answer.ids[-1] in teacher.stop_ids
        body = teacher.tokenizer.decode(answer.ids[:-1] if finished else answer.ids)
        if opener.until and opener.until in body:
            body, finished = body[: body.index(opener.until) + len(opener.until)], True
        text = (opener.text + body).rstrip() + opener.closing
        if finished and len(body.split()) >= 2 and text not in avoid:
            turns.append(Prompt(f"{opener.source}-{seed}-{number}", text))
    return turns


def gather(
    dialogues: Iterable[Dialogue],
    folder: Path,
    worker: str,
    goal_tokens: int,
    minutes: float | None = None,
    shard_size: int = 256,
    layer_ids: tuple[int, ...] = (),
    say: Callable[[str], None] = print,
) -> int:
    """Write dialogues into shards until `goal_tokens` answer tokens are there or `minutes` are over; returns their number."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob(f"{worker}-*.safetensors")))
    pending: list[Dialogue] = []
    tokens, started = 0, time.monotonic()
    for dialogue in dialogues:
        if dialogue.answer_length < 2:
            continue
        pending.append(dialogue)
        tokens += dialogue.answer_length
        late = minutes is not None and time.monotonic() - started > 60 * minutes
        if len(pending) == shard_size or tokens >= goal_tokens or late:
            write_shard(folder / f"{worker}-{number:04d}.safetensors", pending, layer_ids)
            pending, number = [], number + 1
            rate = tokens / (time.monotonic() - started)
            left = max(0, goal_tokens - tokens) / rate
            say(f"{worker}: {tokens:,} answer tokens, {rate:.0f}/s, {left / 60:.0f} min to the goal")
        if tokens >= goal_tokens or late:
            return tokens
    if pending:  # the source ran dry below the goal
        write_shard(folder / f"{worker}-{number:04d}.safetensors", pending, layer_ids)
    return tokens


def self_written(
    teacher: Teacher, openers: Callable[[random.Random], Opener], avoid: NearDuplicates, seed: int, rounds: int = 256
) -> Iterator[Dialogue]:
    """Endless dialogues: the target writes user turns by the hundred and answers them."""
    rng = random.Random(seed)
    while True:
        chosen = sorted((openers(rng) for _ in range(rounds)), key=lambda o: len(o.text))
        turns: list[Prompt] = []
        for start in range(0, rounds, teacher.batch):
            turns += write_turns(teacher, chosen[start : start + teacher.batch], avoid, rng.randrange(2**31))
        yield from answers(teacher, turns)
