"""The training loop of every kind of drafter: resumable, timed by one clock, judged on held-out acceptance.

State on disk, in the output folder: `training/state.safetensors` (weights, optimiser moments,
progress), `log.jsonl` (one object per line: losses and held-out acceptance), and the drafter
itself in the published layout, the best so far by held-out acceptance.
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
from typing import Generic, Protocol, TypeVar

import torch
from safetensors.torch import load_file, save_file

from bastion.drafters.training.shards import Dialogue, ShardReader


JUDGED_BY = 16
"""Nodes of the trees whose held-out tau decides which weights are kept."""

B = TypeVar("B")


class Pupil(Protocol, Generic[B]):
    """A drafter of some kind as the loop sees it. `module` has float32 weights on the training device."""

    module: torch.nn.Module
    width: int

    def prepare(self, dialogues: list[Dialogue], seed: int) -> B:
        """A batch, on the CPU; `seed` decides the anchors. Called from another thread, a step ahead."""

    def positions(self, batch: B) -> int:
        """Labels in a batch."""

    def loss(self, batch: B, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch's loss, and the share of right first guesses at each depth, for the log."""

    def acceptance(self, dialogues: list[Dialogue], dtype: torch.dtype, sizes: tuple[int, ...]) -> dict[int, float]:
        """Held-out tau by tree size; 0 stands for the single path."""

    def save(self, folder: Path) -> None:
        """Write the drafter in the published layout."""


@dataclass(frozen=True)
class Plan:
    """What a training run does. Time counts training steps only, over all resumed parts.

    steps: train so many steps in place of so many minutes; a run then comes out the same however often it was
    interrupted. patience: stop after so many held-out measurements in a row without a better one.
    """

    minutes: float
    steps: int | None = None
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
    patience: int = 6
    log_every: int = 50

    def done(self, progress: Progress) -> float:
        """The share of the run that is over, 0..1."""
        return progress.step / self.steps if self.steps else progress.seconds / (self.minutes * 60)


@dataclass
class Progress:
    step: int = 0
    seconds: float = 0.0
    positions: int = 0
    dialogues: int = 0
    best: float = 0.0
    since_best: int = 0
    dtype: str = ""  # what the run computes in: a resumed run does not choose anew


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
    """Batches of dialogue numbers, of similar length each; new shards join at the next pass. The order is `rng`'s alone."""
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


def save_state(folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write weights and moments; the old state is replaced only by a whole new one."""
    tensors = {f"weight.{name}": value for name, value in module.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"moment.{index}.{name}": value for name, value in moments.items()}
    path = state_file(folder)
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({k: v.contiguous() for k, v in tensors.items()}, partial, {"progress": json.dumps(asdict(progress))})
    partial.rename(path)


def load_state(folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Continue where `save_state` left off; a fresh Progress when there is nothing."""
    from safetensors import safe_open

    path = state_file(folder)
    if not path.exists():
        return Progress()
    tensors = load_file(path)
    module.load_state_dict({k.removeprefix("weight."): v for k, v in tensors.items() if k.startswith("weight.")})
    state: dict[int, dict] = {}
    for key, value in tensors.items():
        if key.startswith("moment."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    with safe_open(path, "pt") as handle:
        return Progress(**json.loads(handle.metadata()["progress"]))


def train(
    pupil: Pupil,
    reader: ShardReader,
    held_out: list[Dialogue],
    held_out_indices: set[int],
    plan: Plan,
    folder: Path,
    say: Callable[[str], None] = print,
) -> Progress:
    """Train in place until the plan is done or held-out acceptance has stopped rising; returns the progress.

    The folder then holds the best weights, which need not be the last. Interrupting loses at most the steps since the
    last held-out measurement.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = pupil.module
    device = next(module.parameters()).device
    optimizer = optimizer_of(module, plan)
    progress = load_state(folder, module, optimizer)
    progress.dtype = progress.dtype or str(faster_dtype(device, pupil.width)).removeprefix("torch.")
    dtype = getattr(torch, progress.dtype)
    compute = torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext()
    module.train()
    batches = endless(reader, held_out_indices, plan.dialogues_per_step, random.Random(plan.seed))
    for _ in range(progress.step):  # the order goes on where it stopped
        next(batches)

    def prepare(step: int):
        dialogues = [reader[i] for i in next(batches)]
        return pupil.prepare(dialogues, seed_of(plan, step)), len(dialogues)

    say(f"training in {progress.dtype} on {device}: {len(reader):,} dialogues, {reader.answer_tokens:,} answer tokens"
        + (f", from step {progress.step} on" if progress.step else ""))
    log = (folder / "log.jsonl").open("a", encoding="utf-8")
    losses: list[float] = []
    last_eval = progress.seconds
    with ThreadPoolExecutor(1) as pool:
        upcoming = pool.submit(prepare, progress.step)
        while plan.done(progress) < 1 and progress.since_best < plan.patience:
            started = time.monotonic()
            batch, count = upcoming.result()
            upcoming = pool.submit(prepare, progress.step + 1)
            rate = learning_rate(plan, plan.done(progress))
            for group in optimizer.param_groups:
                group["lr"] = rate
            with compute:
                loss, shares = pupil.loss(batch, dtype, seed_of(plan, progress.step))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            progress.step += 1
            progress.positions += pupil.positions(batch)
            progress.dialogues += count
            progress.seconds += time.monotonic() - started
            if progress.step % plan.log_every == 0:
                row = {"step": progress.step, "minutes": round(progress.seconds / 60, 2), "loss": round(sum(losses) / len(losses), 4),
                       "top1": [round(s, 3) for s in shares.tolist()], "lr": rate, "positions": progress.positions,
                       "passes": round(progress.dialogues / max(1, len(reader)), 3)}
                losses.clear()
                print(json.dumps(row), file=log, flush=True)
                say(f"step {row['step']}: loss {row['loss']:.3f}, top-1 {row['top1'][0]:.2f}/{row['top1'][-1]:.2f}, "
                    f"{progress.positions / progress.seconds:,.0f} positions/s, {100 * plan.done(progress):.0f} % of the run")
            if progress.seconds - last_eval > plan.evaluate_every * 60 or plan.done(progress) >= 1:
                last_eval = progress.seconds
                tau = judge(pupil, held_out[: plan.evaluate_dialogues], dtype, progress, folder)
                print(json.dumps({"step": progress.step, "minutes": round(progress.seconds / 60, 2), "held_out_tau": tau}), file=log, flush=True)
                say(f"held out: tau {tau[0]:.3f} on the single path, {tau[JUDGED_BY]:.3f} with {JUDGED_BY} nodes"
                    + (", the best so far" if not progress.since_best else f"; the best was {progress.best:.3f}"))
                save_state(folder, module, optimizer, progress)
    log.close()
    if progress.since_best >= plan.patience:
        say(f"no better than {progress.best:.3f} in {progress.since_best} measurements: stopped")
    module.eval()
    return progress


def judge(pupil: Pupil, held_out: list[Dialogue], dtype: torch.dtype, progress: Progress, folder: Path) -> dict[int, float]:
    """Held-out tau; the drafter is written when it is the best so far."""
    pupil.module.eval()
    tau = pupil.acceptance(held_out, dtype, (0, JUDGED_BY))
    pupil.module.train()
    progress.since_best += 1
    if tau[JUDGED_BY] > progress.best:
        progress.best, progress.since_best = tau[JUDGED_BY], 0
        pupil.save(folder)
    return tau


def optimizer_of(module: torch.nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """AdamW; vectors do not decay."""
    groups = [{"params": [p for p in module.parameters() if (p.ndim > 1) == decays], "weight_decay": plan.weight_decay * decays}
              for decays in (True, False)]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.98), foreach=True)


def seed_of(plan: Plan, step: int) -> int:
    """A seed of each step's own, so that a resumed run draws what an undisturbed one would."""
    return plan.seed * 1_000_003 + step
