"""Where `bastion` would stand among the fixed budgets were every time as the probes measured it.

    python -m bench.best_budget_replayed FILE.jsonl ... [--limit 20] [--calibration FILE] [--estimators roofline,table]

What is accepted is replayed on the target's greedy answers (`bastion.decoding.replay`) and is exact. Step times are
simulated: draft and other time of the calibration, and verify times by the curve through all its probes. So the table shows what
the stop rule and its estimate of the cost lose, apart from how a machine's times drift while it decodes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
from bench.ending import in_one_sentence
from bench.greedy_answers import CACHE, known_answers
from bench.side_by_side import read_calibration

from bastion.cli.output import table
from bastion.decoding import resolve_method
from bastion.decoding.replay import replay
from bastion.latency import build_estimator

FIXED = ("ddtree:4", "ddtree:8", "ddtree:16", "ddtree:32", "ddtree:64")


def speed(method, answers, truth, fixed_seconds: float) -> tuple[float, float, float]:
    """Simulated tokens/s, mean nodes, and tau of a method on the answers of one set."""
    tokens = seconds = nodes = steps = 0.0
    for answer in answers:
        done = replay(method, answer)
        # The context of a step is not told by the replay; one in the middle of the answer stands for all.
        context = len(answer.prompt_ids) + len(answer.answer) // 2
        tokens += done.emitted.sum()
        nodes += done.nodes.sum()
        steps += len(done.nodes)
        seconds += fixed_seconds * len(done.nodes) + float(np.sum(truth.seconds(done.nodes, context)))
    return tokens / seconds, nodes / steps, tokens / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--truth", type=Path, help="calibration that times are simulated from, another one in place of the same: apart from its noise")
    parser.add_argument("--estimators", default="roofline,table,convex")
    parser.add_argument("--cache", type=Path, default=CACHE)
    asked = parser.parse_args()
    calibration = read_calibration(asked.calibration)
    sets = known_answers(asked.files, asked.limit, asked.max_new_tokens, cache=asked.cache)
    measured = read_calibration(asked.truth) if asked.truth else calibration
    whole = changed(measured, held_out=[False] * len(measured.probes))
    truth, fixed_seconds = build_estimator("table", whole), measured.draft_seconds + measured.other_seconds
    names = [*FIXED, *(f"bastion@{name}" for name in asked.estimators.split(","))]
    found = {}
    for name in names:
        method = resolve_method(name).calibrated(calibration)
        found[name] = {one: speed(method, answers, truth, fixed_seconds) for one, answers in sets.items()}
    best = max(FIXED, key=lambda name: np.mean([row[0] for row in found[name].values()]))
    rows = [[name, f"{np.mean([row[0] for row in found[name].values()]):.2f}", f"{np.mean([row[1] for row in found[name].values()]):.1f}",
             *(f"{row[0] / found[best][one][0]:.3f}" for one, row in found[name].items()),
             f"{np.mean([row[0] for row in found[name].values()]) / np.mean([row[0] for row in found[best].values()]):.3f}"] for name in names]
    print(f"Accepted: replayed. Times: simulated from the calibration of {measured.made_at}, {measured.dtype}. Ratios to {best}, best on the mean.")
    print(table(["method", "tokens/s", "nodes", *sets, "mean"], rows))


if __name__ == "__main__":
    with in_one_sentence():
        main()
