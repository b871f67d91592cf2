"""The training loop: resumable, timed by one clock, judged on held-out acceptance.

State on disk, in the output folder: `training/state.safetensors` (weights, optimiser moments,
progress), `log.jsonl` (one object per line: losses and held-out acceptance), and the drafter
itself in the published layout whenever held-out acceptance was measured.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bastion.drafters.dflash import DFlashDraftModel, save_dflash
from bastion.drafters.training.batches import Batch, assemble, choose_anchors
from bastion.drafters.training.evaluate import acceptance
from bastion.drafters.training.loss import SampledVocabulary, depth_weights, draft_loss
from bastion.drafters.training.shards import Dialogue, ShardReader


@dataclass(frozen=True)
class Plan:
    """What a training run does. Time counts training steps only, over all resumed parts."""

    minutes: float
    dialogues_per_step: int = 16
    anchors_per_dialogue: int = 16
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.02
    hold: float = 0.5
    depth_decay: float = 4.0
    seed: int = 0
    evaluate_every: float = 5.0  # minutes
    evaluate_dialogues: int = 24
    log_every: int = 50


@dataclass
class Progress:
    step: int = 0
    seconds: float = 0.0
    positions: int = 0
    dialogues: int = 0
    best: float = 0.0


def learning_rate(plan: Plan, done: float) -> float:
    """Warm up, hold, then a cosine down to a twentieth; `done` is the share of the run, 0..1."""
    if done < plan.warmup:
        return plan.learning_rate * (done + 1e-3) / plan.warmup
    if done < plan.hold:
        return plan.learning_rate
    falling = (min(done, 1.0) - plan.hold) / (1 - plan.hold)
    return plan.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * falling)))


def faster_dtype(device: torch.device, width: int) -> torch.dtype:
    """bfloat16 or float32, whichever multiplies matrices of the drafter's width faster here."""
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(1024, width, device=device, dtype=dtype) for _ in range(2))
        for repeat in range(6):
            if repeat == 1:
                started = time.perf_counter()
            a @ b.t()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times[dtype] = time.perf_counter() - started
    return min(times, key=times.get)


def endless(reader: ShardReader, held_out: set[int], size: int, rng: random.Random) -> Iterator[list[int]]:
    """Batches of dialogue numbers, of similar length each; new shards join at the next pass."""
    while True:
        reader.refresh()
        order = [i for i in range(len(reader)) if i not in held_out]
        rng.shuffle(order)
        # sort within windows: padding stays small and the order stays random
        window = size * 32
        chunks = []
        for start in range(0, len(order), window):
            part = sorted(order[start : start + window], key=lambda i: reader.index[i][2])
            chunks += [part[j : j + size] for j in range(0, len(part), size)]
        rng.shuffle(chunks)
        yield from (chunk for chunk in chunks if len(chunk) == size)


def token_counts(reader: ShardReader, vocab_size: int) -> torch.Tensor:
    """How often each id occurs in the answers read so far, int64 [vocab]."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for path, start, length, prompt, *_ in reader.index:
        counts += torch.bincount(reader.ids[path][start + prompt : start + length].long(), minlength=vocab_size)
    return counts


def state_file(folder: Path) -> Path:
    """Apart from the drafter's own weights: a loader takes every safetensors file beside config.json."""
    return folder / "training" / "state.safetensors"


def save_state(folder: Path, drafter: DFlashDraftModel, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write weights and moments; the old state is replaced only by a whole new one."""
    tensors = {f"weight.{name}": value for name, value in drafter.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"moment.{index}.{name}": value for name, value in moments.items()}
    path = state_file(folder)
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({k: v.contiguous() for k, v in tensors.items()}, partial, {"progress": json.dumps(asdict(progress))})
    partial.rename(path)


def load_state(folder: Path, drafter: DFlashDraftModel, optimizer: torch.optim.Optimizer) -> Progress:
    """Continue where `save_state` left off; a fresh Progress when there is nothing."""
    from safetensors import safe_open

    path = state_file(folder)
    if not path.exists():
        return Progress()
    tensors = load_file(path)
    drafter.load_state_dict({k.removeprefix("weight."): v for k, v in tensors.items() if k.startswith("weight.")})
    state: dict[int, dict] = {}
    for key, value in tensors.items():
        if key.startswith("moment."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    with safe_open(path, "pt") as handle:
        return Progress(**json.loads(handle.metadata()["progress"]))


def train(
    drafter: DFlashDraftModel,
    embedding: torch.Tensor,
    head: torch.Tensor,
    reader: ShardReader,
    held_out: list[Dialogue],
    held_out_indices: set[int],
    plan: Plan,
    folder: Path,
    say: Callable[[str], None] = print,
) -> Progress:
    """Train in place until `plan.minutes` of training are spent; returns the progress.

    drafter: float32 weights on the training device. embedding, head: the target's, [vocab, h],
    frozen. Interrupting loses at most the steps since the last held-out measurement.
    """
    folder.mkdir(parents=True, exist_ok=True)
    device = drafter.fc.weight.device
    dtype = faster_dtype(device, drafter.config.hidden_size)
    compute = torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext()
    decayed = [p for p in drafter.parameters() if p.ndim > 1]
    others = [p for p in drafter.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=plan.learning_rate, betas=(0.9, 0.98), foreach=True,
    )
    progress = load_state(folder, drafter, optimizer)
    drafter.train()
    rng = random.Random(plan.seed + progress.step)
    vocabulary = SampledVocabulary(token_counts(reader, embedding.shape[0]), seed=plan.seed + progress.step)
    weights = depth_weights(drafter.config.depth, plan.depth_decay)
    batches = endless(reader, held_out_indices, plan.dialogues_per_step, rng)
    c = drafter.config

    def prepare() -> tuple[Batch, int]:
        dialogues = [reader[i] for i in next(batches)]
        anchors = [choose_anchors(d, plan.anchors_per_dialogue, rng) for d in dialogues]
        return assemble(dialogues, anchors, c.block_size, c.mask_token_id), len(dialogues)

    say(f"training in {dtype} on {device}: {len(reader):,} dialogues, {reader.answer_tokens:,} answer tokens")
    log = (folder / "log.jsonl").open("a", encoding="utf-8")
    losses: list[float] = []
    last_eval = progress.seconds
    with ThreadPoolExecutor(1) as pool:
        upcoming = pool.submit(prepare)
        while progress.seconds < plan.minutes * 60:
            started = time.monotonic()
            batch, count = upcoming.result()
            upcoming = pool.submit(prepare)
            rate = learning_rate(plan, progress.seconds / (plan.minutes * 60))
            for group in optimizer.param_groups:
                group["lr"] = rate
            with compute:
                hidden = drafter(
                    embedding[batch.block_ids.to(device)].to(dtype), batch.context.to(device, dtype), batch.positions.to(device),
                    attention_mask=batch.mask.to(device),
                )
                hidden = hidden.view(count, -1, c.block_size, c.hidden_size)[:, :, 1:]
                loss, shares = draft_loss(hidden, batch.labels.to(device), head, vocabulary, weights)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            progress.step += 1
            progress.positions += int((batch.labels >= 0).sum())
            progress.dialogues += count
            progress.seconds += time.monotonic() - started
            if progress.step % plan.log_every == 0:
                left = plan.minutes - progress.seconds / 60
                row = {"step": progress.step, "minutes": round(progress.seconds / 60, 2), "loss": round(sum(losses) / len(losses), 4),
                       "top1": [round(s, 3) for s in shares.tolist()], "lr": rate, "positions": progress.positions,
                       "passes": round(progress.dialogues / max(1, len(reader)), 3)}
                losses.clear()
                print(json.dumps(row), file=log, flush=True)
                speed = progress.positions / progress.seconds
                say(f"step {row['step']}: loss {row['loss']:.3f}, top-1 {row['top1'][0]:.2f}/{row['top1'][-1]:.2f}, "
                    f"{speed:,.0f} positions/s, {left:.0f} min left")
            if progress.seconds - last_eval > plan.evaluate_every * 60 or progress.seconds >= plan.minutes * 60:
                last_eval = progress.seconds
                drafter.eval()
                tau = acceptance(drafter, embedding, head, held_out[: plan.evaluate_dialogues])
                drafter.train()
                progress.best = max(progress.best, tau[16])
                print(json.dumps({"step": progress.step, "minutes": round(progress.seconds / 60, 2), "held_out_tau": tau}), file=log, flush=True)
                say(f"held out: tau {tau[0]:.3f} on the single path, {tau[16]:.3f} with 16 nodes")
                save_state(folder, drafter, optimizer, progress)
                save_dflash(drafter, folder)
    log.close()
    drafter.eval()
    return progress
