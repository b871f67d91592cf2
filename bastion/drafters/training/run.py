"""`bastion train`: from a file of prompts to a drafter in the published layout.

Three parts, each resumable on its own: the target answers (shards), the drafter learns (state),
and what was measured is written beside the weights (growth.json, model card, log).
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bastion.drafters.dflash import DFlashConfig, DFlashDraftModel, build_target_layer_ids, save_dflash
from bastion.drafters.dflash_drafter import GROWTH_FILE
from bastion.drafters.training.card import write_card
from bastion.drafters.training.evaluate import acceptance, fit_depth_temperatures
from bastion.drafters.training.gather import Teacher, answers, gather, reread, self_written
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
from bastion.drafters.training.warm_start import config_like, warm_start
from bastion.errors import UserError
from bastion.models.attention import register as register_attention
from bastion.models.device import pick_device
from bastion.models.quiet import quieten_libraries
from bastion.models.tokenizer import Tokenizer
from bastion.models.windows import windows_of

HELD_OUT_SHARE = 97  # one dialogue in this many is held out, chosen by its ids


@dataclass(frozen=True)
class TrainingJob:
    """Everything that decides the outcome, but for the device."""

    target: str
    prompts: tuple[Path, ...]
    out: Path
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
    random_start: bool = False
    held_out_dialogues: int = 60
    plan: Plan = field(default_factory=lambda: Plan(minutes=60))

    def check(self) -> TrainingJob:
        if not self.prompts:
            raise UserError("Give at least one file of prompts.")
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
    shards = job.out / "answers"
    reader = ShardReader(shards)
    if reader.answer_tokens < job.answer_tokens:
        say(f"the target answers prompts until {job.answer_tokens:,} answer tokens are there ({reader.answer_tokens:,} so far)")
        done = {row[6] for row in reader.index}
        gather(sources(job, teacher, done), shards, "answers", job.answer_tokens - reader.answer_tokens, job.gather_minutes, say=say)
        reader.refresh()
    if not len(reader):
        raise UserError("The prompts gave no answer to learn from; give more prompts.")
    held_indices = held_out_indices(reader)
    held_out = [reader[i] for i in sorted(held_indices)][: job.held_out_dialogues]

    target = teacher.model.float()  # warm start, head and measuring are done in float32
    embedding, head = target.get_input_embeddings().weight.detach(), target.get_output_embeddings().weight.detach()
    config = config_like(
        target.config, job.layers, job.block_size, mask_token(job, teacher.tokenizer, teacher.stop_ids), teacher.layer_ids
    )
    drafter = DFlashDraftModel(config).to(place)
    if not job.random_start:
        warm_start(drafter, target, reader.ids_of(0)[None].to(place))
    progress = train(drafter, embedding, head, reader, held_out, held_indices, job.plan, job.out, say)

    say("fitting a temperature per depth on held-out text")
    temperatures = fit_depth_temperatures(drafter, embedding, head, held_out)
    tau = acceptance(drafter, embedding, head, held_out, temperatures, sizes=(0, 8, 16, 32))
    save_dflash(drafter, job.out)
    (job.out / GROWTH_FILE).write_text(json.dumps({"depth_temperatures": [round(t, 4) for t in temperatures.tolist()]}) + "\n")
    result = {
        "out": str(job.out),
        "target": job.target,
        "dialogues": len(reader),
        "answer_tokens": reader.answer_tokens,
        "steps": progress.step,
        "positions": progress.positions,
        "seconds": progress.seconds,
        "seed": job.plan.seed,
        "depth_temperatures": temperatures.tolist(),
        "held_out_dialogues": len(held_out),
        "held_out_tau": {"single path" if size == 0 else f"{size} nodes": value for size, value in tau.items()},
    }
    write_card(job.out, config, result)
    return result


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
    layer_ids = job.feature_layers or tuple(dict.fromkeys(build_target_layer_ids(layers, 5)))
    if any(not 0 <= i < layers for i in layer_ids):
        raise UserError(f"Feature layers {list(layer_ids)} are outside the target's layers 0 to {layers - 1}.")
    eos = model.generation_config.eos_token_id
    stops = {tokenizer.backend.eos_token_id, *(eos if isinstance(eos, list) else [eos])} - {None}
    return Teacher(model, tokenizer, layer_ids, frozenset(stops), job.max_new_tokens, job.batch)


def load_drafter(folder: Path) -> DFlashDraftModel:
    """A drafter alone, in float32 and without a target to check it against, for measuring it."""
    from safetensors.torch import load_file

    drafter = DFlashDraftModel(DFlashConfig.from_json((folder / "config.json").read_text(encoding="utf-8")))
    drafter.load_state_dict(load_file(folder / "model.safetensors"))
    return drafter.float().eval()


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


def mask_token(job: TrainingJob, tokenizer: Tokenizer, stops: frozenset[int]) -> int:
    """The id that marks slots to fill: given, or the last special id that is neither padding nor a stop."""
    backend = tokenizer.backend
    if job.mask_token_id is not None:
        if not 0 <= job.mask_token_id < len(backend):
            raise UserError(f"The mask id {job.mask_token_id} is outside the vocabulary of {len(backend)} ids.")
        return job.mask_token_id
    used = {backend.pad_token_id, backend.eos_token_id, backend.bos_token_id, *stops}
    special = sorted(i for i, token in backend.added_tokens_decoder.items() if token.special and i not in used)
    if not special:
        raise UserError("The tokenizer has no spare special token; name an id the target never writes with --mask-id.")
    return special[-1]
