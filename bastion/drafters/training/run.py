"""`bastion train`: from a file of prompts to a drafter in the published layout.

Three parts, each resumable on its own: the target answers (shards), the drafter learns (state),
and what was measured is written beside the weights (growth.json, model card, log). What differs from
kind to kind is in `kinds`.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bastion.drafters.training.card import write_card
from bastion.drafters.training.gather import Teacher, answers, gather, reread, self_written
from bastion.drafters.training.kinds import KINDS, even_layers
from bastion.drafters.training.loop import Plan, faster_dtype, train
from bastion.drafters.training.prompts import (
    NearDuplicates,
    Opener,
    Prompt,
    openers_from,
    read_lines,
    read_openers,
    read_prompts,
)
from bastion.drafters.training.shards import Dialogue, ShardReader
from bastion.errors import UserError
from bastion.models.attention import register as register_attention
from bastion.models.device import pick_device
from bastion.models.quiet import quieten_libraries
from bastion.models.tokenizer import Tokenizer
from bastion.models.windows import windows_of

HELD_OUT_SHARE = 97  # one dialogue in this many is held out, chosen by its ids


@dataclass(frozen=True)
class TrainingJob:
    """Everything that decides the outcome, but for the device.

    answers: a folder of answers gathered before, in place of gathering any. layers, block_size and mask_token_id are a
    DFlash drafter's; draft_vocabulary and unroll (steps a head goes on its own outputs) an EAGLE-3 head's;
    start_layers the target's that a small language model starts from.
    """

    target: str
    prompts: tuple[Path, ...]
    out: Path
    kind: str = "dflash"
    answers: Path | None = None
    openers: Path | None = None
    avoid: tuple[Path, ...] = ()
    answer_tokens: int = 2_000_000
    gather_minutes: float | None = None
    max_new_tokens: int = 144
    batch: int = 64
    layers: int = 4
    block_size: int = 8
    feature_layers: tuple[int, ...] | None = None
    mask_token_id: int | None = None
    draft_vocabulary: int = 8192
    unroll: int = 4
    start_layers: tuple[int, ...] | None = None
    random_start: bool = False
    held_out_dialogues: int = 60
    plan: Plan = field(default_factory=lambda: Plan(minutes=60))

    def check(self) -> TrainingJob:
        if not self.prompts and self.answers is None:
            raise UserError("Give at least one file of prompts with --prompts, or a folder of gathered answers with --answers.")
        if self.kind not in KINDS:
            raise UserError(f"There is no kind of drafter {self.kind!r} to train; choose one of {', '.join(KINDS)}.")
        if self.block_size < 2 or self.layers < 1:
            raise UserError("A drafter needs a block of 2 or more and at least one layer.")
        return self


def run(job: TrainingJob, device: str = "auto", say: Callable[[str], None] = print) -> dict:
    """Gather, train, measure, write; returns what `train --json` prints. Raises UserError."""
    job.check()
    quieten_libraries()
    torch.manual_seed(job.plan.seed)
    place = pick_device(device)
    teacher = load_teacher(job, place)
    reader = gathered(job, teacher, say)
    held_indices = held_out_indices(reader)
    held_out = [reader[i] for i in sorted(held_indices)][: job.held_out_dialogues]

    teacher.model.float()  # warm start, head and measuring are done in float32
    kind = KINDS[job.kind]
    pupil = kind.pupil(job, teacher, reader, held_out, say)
    progress = train(pupil, reader, held_out, held_indices, job.plan, job.out, say)
    say(f"measuring the best weights on {len(held_out)} held-out dialogues")
    tau, more = kind.finish(pupil, job.out, held_out, getattr(torch, progress.dtype))
    result = {
        "out": str(job.out),
        "kind": job.kind,
        "target": job.target,
        "dialogues": len(reader),
        "answer_tokens": reader.answer_tokens,
        "steps": progress.step,
        "positions": progress.positions,
        "seconds": progress.seconds,
        "seed": job.plan.seed,
        **more,
        "held_out_dialogues": len(held_out),
        "held_out_tau": {"single path" if size == 0 else f"{size} nodes": value for size, value in tau.items()},
    }
    write_card(job.out, result)
    return result


def gathered(job: TrainingJob, teacher: Teacher, say: Callable[[str], None]) -> ShardReader:
    """The answers to learn from: those of `job.answers`, or gathered into the drafter's own folder."""
    shards = job.answers or job.out / "answers"
    layers = teacher.model.config.get_text_config().num_hidden_layers
    reader = ShardReader(shards, teacher.layer_ids, unnamed=even_layers(layers) if job.answers else teacher.layer_ids)
    if job.answers is None and reader.answer_tokens < job.answer_tokens:
        say(f"the target answers prompts until {job.answer_tokens:,} answer tokens are there ({reader.answer_tokens:,} so far)")
        done = {row[6] for row in reader.index}
        gather(sources(job, teacher, done), shards, "answers", job.answer_tokens - reader.answer_tokens, job.gather_minutes,
               layer_ids=teacher.layer_ids, say=say)
        reader.refresh()
    if not len(reader):
        raise UserError(f"There are no answers in {shards} to learn from." if job.answers else
                        "The prompts gave no answer to learn from; give more prompts.")
    return reader


def load_teacher(job: TrainingJob, place: torch.device) -> Teacher:
    """The target, its tokenizer and its stop tokens, in the dtype that multiplies faster here."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(job.target)
        dtype = faster_dtype(place, config.get_text_config().hidden_size)
        model = AutoModelForCausalLM.from_pretrained(
            job.target, dtype=dtype, attn_implementation=register_attention(), use_safetensors=True
        )
        tokenizer = Tokenizer(AutoTokenizer.from_pretrained(job.target))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"The target {job.target} cannot be loaded ({first}); give a folder or a hub name.") from None
    if windows_of(config.get_text_config(), job.target).window is not None:
        raise UserError(f"{job.target} has sliding windows, under which training data is not made; give a target of full attention.")
    model = model.to(place).eval().requires_grad_(False)
    layers = model.config.get_text_config().num_hidden_layers
    layer_ids = job.feature_layers or KINDS[job.kind].default_layers(layers)
    if any(not 0 <= i < layers for i in layer_ids):
        raise UserError(f"Feature layers {list(layer_ids)} are outside the target's layers 0 to {layers - 1}.")
    eos = model.generation_config.eos_token_id
    stops = {tokenizer.backend.eos_token_id, *(eos if isinstance(eos, list) else [eos])} - {None}
    return Teacher(model, tokenizer, layer_ids, frozenset(stops), job.max_new_tokens, job.batch)


def sources(job: TrainingJob, teacher: Teacher, done: set[str]) -> Iterator[Dialogue]:
    """Dialogues from every source in turn: ready continuations, prompts of the files, self-written turns."""
    avoid = NearDuplicates(prompt.text for path in job.avoid for prompt in read_prompts(path))
    ready, prompts = [], []
    for path in job.prompts:
        first = next(read_lines(path), {})
        if "output_ids" in first:
            ready += [row for row in read_lines(path) if teacher.tokenizer.decode(row["prompt_ids"]) not in avoid]
        else:
            prompts += [p for p in read_prompts(path) if p.text not in avoid]
    rng = random.Random(job.plan.seed)
    rng.shuffle(ready)
    rng.shuffle(prompts)
    if ready and not done:  # ready dialogues carry no id, so they are read once, in the first part
        for start in range(0, len(ready), 512):
            yield from reread(teacher, ready[start : start + 512])
    fresh = [p for p in prompts if p.id not in done]
    for start in range(0, len(fresh), 512):
        yield from answers(teacher, fresh[start : start + 512])
    if not prompts and job.openers is None:
        return
    yield from self_written(teacher, opener_choice(job, prompts), avoid, seed=job.plan.seed + len(done))


def opener_choice(job: TrainingJob, prompts: list[Prompt]) -> Callable[[random.Random], Opener]:
    """Chooses a source at random, then one of its openers; the prompts' own beginnings are one source."""
    by_source: dict[str, list[Opener]] = {}
    for opener in read_openers(job.openers) if job.openers else []:
        by_source.setdefault(opener.source, []).append(opener)
    own = openers_from(prompts, random.Random(job.plan.seed)) if prompts else None
    names = [*by_source, *(["own"] if own else [])]

    def choose(rng: random.Random) -> Opener:
        name = rng.choice(names)
        return next(own) if name == "own" else rng.choice(by_source[name])

    return choose


def held_out_indices(reader: ShardReader) -> set[int]:
    """Dialogues never trained on: chosen by a checksum of their first ids, so that resuming keeps them."""
    chosen = {
        i for i in range(len(reader)) if zlib.crc32(reader.ids_of(i)[:40].numpy().tobytes()) % HELD_OUT_SHARE == 0
    }
    return chosen or {len(reader) - 1}
