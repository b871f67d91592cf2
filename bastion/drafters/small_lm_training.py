"""`bastion train --kind small-lm`: from a file of prompts to a small language model that drafts for their target.

The answers and features are those that a DFlash drafter is trained on, and the folder is laid out and resumed
alike: `answers/`, `training/state.safetensors`, `log.jsonl`. The model is written as transformers writes it,
without the embedding and the head, which are the target's (`SHARED` in config.json).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from bastion.drafters.small_lm_config import SHARED, SHARED_PARTS
from bastion.drafters.small_lm_learning import Lesson, RestOfTarget, TextBatch, decoder_like, distil, judge, text_batch
from bastion.drafters.training.gather import gather
from bastion.drafters.training.loop import (
    Plan, Progress, endless, faster_dtype, learning_rate, load_state, save_state, token_counts)
from bastion.drafters.training.loss import SampledVocabulary
from bastion.drafters.training.run import TrainingJob, held_out_indices, load_teacher, sources
from bastion.drafters.training.shards import Dialogue, ShardReader
from bastion.errors import UserError
from bastion.models.device import pick_device
from bastion.models.quiet import quieten_libraries

FREQUENT, SAMPLED = 2048, 384
"""Ids that every batch's loss runs over, and how many of the others are drawn for it."""


@dataclass(frozen=True)
class SmallLmJob:
    """What decides the outcome beside the prompts and the plan, which are `data`'s; start: target layers copied."""

    data: TrainingJob
    start: tuple[int, ...] = (0, 1, 29)
    lesson: Lesson = field(default_factory=Lesson)


def run(job: SmallLmJob, device: str = "auto", say: Callable[[str], None] = print) -> dict:
    """Gather, train, measure, write; returns what `train --json` prints. Raises UserError."""
    data = job.data.check()
    quieten_libraries()
    torch.manual_seed(data.plan.seed)
    place = pick_device(device)
    teacher = load_teacher(data, place)
    small = decoder_like(teacher.model, job.start)  # before the hours of gathering, since it says what does not fit
    reader = ShardReader(data.out / "answers")
    if reader.answer_tokens < data.answer_tokens:
        say(f"the target answers prompts until {data.answer_tokens:,} answer tokens are there ({reader.answer_tokens:,} so far)")
        done = {row[6] for row in reader.index}
        gather(sources(data, teacher, done), data.out / "answers", "answers", data.answer_tokens - reader.answer_tokens,
               data.gather_minutes, say=say)
        reader.refresh()
    if not len(reader):
        raise UserError("The prompts gave no answer to learn from; give more prompts.")
    held = held_out_indices(reader)
    held_out = [reader[i] for i in sorted(held)][: data.held_out_dialogues]
    target = teacher.model.float()
    target.set_attn_implementation("sdpa")
    progress = train(small.to(place), target, RestOfTarget(target, teacher.layer_ids[-1]), reader, held_out, held, job, say)
    measured = judge(small, *_ends(target), held_out)
    save_small_lm(small, data.out)
    result = {
        "kind": "small-lm", "out": str(data.out), "target": data.target, "start": list(job.start), "dialogues": len(reader),
        "answer_tokens": reader.answer_tokens, "steps": progress.step, "positions": progress.positions, "seconds": progress.seconds,
        "seed": data.plan.seed, "held_out_dialogues": len(held_out), "held_out": measured,
    }
    write_card(data.out, small.config, result)
    return result


def train(
    small: nn.Module, target: nn.Module, rest: RestOfTarget, reader: ShardReader, held_out: Sequence[Dialogue], held: set[int],
    job: SmallLmJob, say: Callable[[str], None],
) -> Progress:
    """Train `small` in place until the plan's minutes of training are spent; interrupting loses what came since the
    last held-out measurement."""
    plan, folder = job.data.plan, job.data.out
    folder.mkdir(parents=True, exist_ok=True)
    embedding, head = _ends(target)
    device = head.device
    dtype = faster_dtype(device, head.shape[1])
    compute = torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext()
    fast_head = head.to(dtype)
    optimizer = _optimizer(small, plan)
    progress = load_state(folder, small, optimizer)
    rng = random.Random(plan.seed + progress.step)
    vocabulary = SampledVocabulary(token_counts(reader, head.shape[0]), FREQUENT, SAMPLED, plan.seed + progress.step)
    batches = endless(reader, held, plan.dialogues_per_step, rng)

    def prepare() -> TextBatch:
        return text_batch([reader[i] for i in next(batches)])

    say(f"training in {dtype} on {device}: {len(reader):,} dialogues, {reader.answer_tokens:,} answer tokens")
    losses: list[float] = []
    rights: list[float] = []
    last_eval = progress.seconds
    with ThreadPoolExecutor(1) as pool, (folder / "log.jsonl").open("a", encoding="utf-8") as log:
        upcoming = pool.submit(prepare)
        while progress.seconds < plan.minutes * 60:
            started = time.monotonic()
            batch = upcoming.result()
            upcoming = pool.submit(prepare)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(plan, progress.seconds / (plan.minutes * 60))
            small.train()
            here = batch.labels >= 0
            with compute:
                taught = rest.hidden(batch.features.to(device, torch.float32))[here]
                hidden = small(inputs_embeds=embedding[batch.ids.to(device)], use_cache=False).last_hidden_state[here]
            toward, loss, right = distil(hidden, taught, batch.labels[here].to(device), batch.answers[here].to(device), fast_head,
                                         vocabulary, job.lesson)
            optimizer.zero_grad(set_to_none=True)
            toward.backward()
            torch.nn.utils.clip_grad_norm_(small.parameters(), 1.0)
            optimizer.step()
            losses.append(loss)
            rights.append(right)
            progress.step += 1
            progress.positions += int(here.sum())
            progress.dialogues += len(batch.ids)
            progress.seconds += time.monotonic() - started
            if progress.step % plan.log_every == 0:
                row = {"step": progress.step, "minutes": round(progress.seconds / 60, 2), "loss": round(sum(losses) / len(losses), 4),
                       "top1": round(sum(rights) / len(rights), 3), "lr": optimizer.param_groups[0]["lr"],
                       "positions": progress.positions, "passes": round(progress.dialogues / max(1, len(reader)), 3)}
                losses.clear()
                rights.clear()
                print(json.dumps(row), file=log, flush=True)
                say(f"step {row['step']}: loss {row['loss']:.3f}, top-1 {row['top1']:.2f}, "
                    f"{progress.positions / progress.seconds:,.0f} positions/s, {plan.minutes - progress.seconds / 60:.0f} min left")
            if progress.seconds - last_eval > plan.evaluate_every * 60 or progress.seconds >= plan.minutes * 60:
                last_eval = progress.seconds
                found = judge(small.eval(), embedding, head, held_out[: plan.evaluate_dialogues])
                print(json.dumps({"step": progress.step, "minutes": round(progress.seconds / 60, 2), "held_out": found}), file=log, flush=True)
                say(f"held out: top-1 {found['top1']:.3f}, tau {found['chain:8']:.3f} on a path of 8")
                save_state(folder, small, optimizer, progress)
                save_small_lm(small, folder)
    small.eval()
    return progress


def save_small_lm(small: nn.Module, folder: Path) -> None:
    """config.json and model.safetensors (bfloat16) as transformers names them, without what the target lends."""
    config = small.config.to_dict() | {"architectures": [type(small).__name__.removesuffix("Model") + "ForCausalLM"], SHARED: SHARED_PARTS,
                                       "dtype": "bfloat16"}
    config.pop("_name_or_path", None)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.partial"
    save_file({f"model.{name}": value.to(torch.bfloat16).contiguous() for name, value in small.state_dict().items()}, partial,
              metadata={"format": "pt"})
    partial.rename(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_card(folder: Path, config, result: dict) -> None:
    """README.md of the folder, from what `run` measured."""
    measured = "\n".join(f"| path of {name.removeprefix('chain:')} | {value:.3f} |"
                         for name, value in result["held_out"].items() if name.startswith("chain:"))
    (folder / "README.md").write_text(
        f"""# Small language model that drafts for {Path(result["target"]).name}

{config.num_hidden_layers} layers of the target's width ({config.hidden_size}), started from its layers {result["start"]}. Embedding and head
are the target's and are not in this folder (`{SHARED}` in config.json).

## Data
{result["dialogues"]:,} dialogues, {result["answer_tokens"]:,} answer tokens, all written greedily by the target itself.

## Training
{result["steps"]:,} steps over {result["positions"]:,} positions in {result["seconds"] / 60:.0f} minutes, seed {result["seed"]}.
Loss: on answers half the cross-entropy with the target's distribution and half that with the token it chose; on prompts the former.

## Held out
{result["held_out_dialogues"]} dialogues that were not trained on, 64 tokens of answer, temperature 0: the target's token is put first at
{100 * result["held_out"]["top1"]:.1f} % of positions. tau (tokens a step emits, mean over decode steps) of the most probable tokens in a row:

| drafted | tau |
| --- | --- |
{measured}
""",
        encoding="utf-8",
    )


def _ends(target: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    return target.get_input_embeddings().weight.detach(), target.get_output_embeddings().weight.detach()


def _optimizer(small: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    matrices = [p for p in small.parameters() if p.ndim > 1]
    others = [p for p in small.parameters() if p.ndim <= 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": plan.weight_decay}, {"params": others, "weight_decay": 0.0}],
                             lr=plan.learning_rate, betas=(0.9, 0.98), foreach=True)


