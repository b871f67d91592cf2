"""Speed of methods on prompt sets: the same prompts decoded with each, in shuffled order, one after the other."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bastion.drafters.training.prompts import read_prompts
from bastion.errors import UserError
from bastion.latency import Calibration

WARM_UP_TOKENS = 8


def read_calibration(file: Path | None) -> Calibration:
    """From a file, or this device's stored one for the default pair. UserError when there is none."""
    if file is not None:
        return Calibration.load(file)
    from bastion import load_pair
    from bastion.decoding.calibrate import stored_calibration

    found = stored_calibration(load_pair("smollm2-135m", device="cpu", dtype="float32"))
    if found is None:
        raise UserError("This device has no calibration yet: run `python -m bastion calibrate`, or give --calibration FILE.")
    return found


def measured(methods: Sequence[str], files: Sequence[Path], limit: int, tokens: int, pair_name: str = "smollm2-135m", seed: int = 0,
             build=lambda name: name) -> list[dict]:
    """One row a decode: set, prompt, method, tokens, steps, nodes, seconds of its decode steps, and its ids.

    build: from a name to the method, where it is not the registry's. Every prompt is decoded by all methods
    before the next, their order drawn anew each time.
    """
    from bastion import decode, load_pair
    from bastion.models.quiet import quieten_libraries

    quieten_libraries()
    pair = load_pair(pair_name, device="cpu", dtype="float32")
    prompts = [(file.stem, prompt.text) for file in files for prompt in read_prompts(file)[:limit]]
    built = {name: build(name) for name in methods}
    for method in built.values():   # kernels are chosen, and the device is calibrated, before anything counts
        list(decode(pair, prompts[0][1], method, max_new_tokens=WARM_UP_TOKENS, trace=False, on_notice=_say))
    order, shuffled, rows = list(methods), random.Random(seed), []
    for number, (name, text) in enumerate(prompts):
        shuffled.shuffle(order)
        for method in order:
            steps = list(decode(pair, text, built[method], max_new_tokens=tokens, trace=False))
            decoded = [step for step in steps if step.kind == "decode"]
            rows.append({"set": name, "prompt": number, "method": method, "tokens": sum(len(s.emitted) for s in decoded), "steps": len(decoded),
                         "nodes": sum(s.nodes for s in decoded), "seconds": sum(s.seconds.total for s in decoded),
                         "ids": [int(token) for s in steps for token in s.emitted]})
        _say(f"{name}: {number + 1} of {len(prompts)} prompts decoded")
    return rows


def summed(rows: Sequence[dict], method: str, of: str | None = None) -> dict[str, float]:
    """tau, nodes a step and tokens/s of a method over a set, or over all."""
    chosen = [row for row in rows if row["method"] == method and of in (None, row["set"])]
    total = {key: sum(row[key] for row in chosen) for key in ("tokens", "steps", "nodes", "seconds")}
    return {"tau": total["tokens"] / max(1, total["steps"]), "nodes": total["nodes"] / max(1, total["steps"]),
            "speed": total["tokens"] / max(1e-9, total["seconds"])}


def speed_ratios(rows: Sequence[dict], above: str, below: str) -> np.ndarray:
    """tokens/s of one method over another's, prompt by prompt [prompts]."""
    rate = {(row["prompt"], row["method"]): row["tokens"] / row["seconds"] for row in rows if row["steps"]}
    numbers = sorted({prompt for prompt, _ in rate})
    return np.array([rate[number, above] / rate[number, below] for number in numbers if {(number, above), (number, below)} <= rate.keys()])


def interval(ratios: np.ndarray, draws: int = 4000) -> tuple[float, float]:
    """95 % of the geometric mean of paired ratios under resampling of the prompts."""
    chosen = np.random.default_rng(0).integers(0, len(ratios), (draws, len(ratios)))
    low, high = np.percentile(np.exp(np.log(ratios)[chosen].mean(axis=1)), (2.5, 97.5))
    return float(low), float(high)


def print_speeds(rows: Sequence[dict], methods: Sequence[str], yardstick: str = "ar") -> None:
    """A line a set: tau, nodes and speed (the yardstick = 1) of each method, then the last over the first."""
    names = list(dict.fromkeys(row["set"] for row in rows))
    print("\nmeasured: tau, nodes a step, speed (" + yardstick + " = 1) of " + ", of ".join(methods) + f"; speed of {methods[-1]} over {methods[0]}")
    per_set = []
    for name in names:
        plain = summed(rows, yardstick, name)["speed"]
        found = [summed(rows, method, name) for method in methods]
        per_set.append([one["speed"] / plain for one in found])
        print(f"{name:<10}" + "".join(f"{one['tau']:>8.2f}{one['nodes']:>7.1f}{one['speed'] / plain:>7.2f}x" for one in found)
              + f"{found[-1]['speed'] / found[0]['speed']:>9.2f}x")
    means = np.mean(per_set, axis=0)
    ratios = speed_ratios(rows, methods[-1], methods[0])
    low, high = interval(ratios)
    print(f"{'mean':<10}" + "".join(f"{'':>15}{mean:>7.2f}x" for mean in means) + f"{means[-1] / means[0]:>9.2f}x")
    print(f"{methods[-1]} over {methods[0]}, prompt by prompt: geometric mean {np.exp(np.log(ratios).mean()):.3f}x (95 % {low:.3f} to {high:.3f}, "
          f"{len(ratios)} prompts)")
    ids = {(row["prompt"], row["method"]): row["ids"] for row in rows}
    same = [sum(ids[p, m] == ids[p, yardstick] for p in {row["prompt"] for row in rows}) for m in methods]
    print(f"same ids as {yardstick}: " + ", ".join(f"{m} {count} of {len({row['prompt'] for row in rows})}" for m, count in zip(methods, same, strict=True)))


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
