"""Whether the stop should look past a step of the cost: predicted on saved runs, then measured in turn with the plain rule.

    python bench/look_past.py [--runs FOLDER] [--look-past 32] [--rounds 4] [--tokens 64] [--no-decode]

Predicted: every saved run that holds its calibration and its growth logs is stopped again by both rules under
the measured table of that calibration. Measured: the pair decodes each prompt with both, one after the
other, and their order turns.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from bastion.analysis.latency_known import carried  # noqa: E402
from bastion.analysis.look_past import replay  # noqa: E402
from bastion.errors import UserError  # noqa: E402
from bastion.latency import Calibration, build_estimator  # noqa: E402
from bastion.records import RunStore  # noqa: E402

PROMPTS = (
    "Explain in simple words how a bicycle stays upright.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A farmer has 17 sheep and buys 5 more. How many sheep are there now? Explain.",
)


def predicted(store: RunStore, look_past: int, estimator: str) -> None:
    """One line for each run that can be replayed, and one for all."""
    print(f"Predicted under `{estimator}`, look past {look_past} nodes")
    print(f"{'run':24} {'steps':>6} {'differ':>7} {'nodes':>7} {'nodes past':>11} {'speed past / plain':>19}")
    replays = []
    for summary in store.list():
        try:
            run = store.open(summary.id)
            calibration = carried(run.info.get("calibration"), f"The calibration in run {summary.id}")
            if not isinstance(calibration, Calibration):
                continue
            found = replay(run.steps, calibration, build_estimator(estimator, calibration), look_past)
        except UserError as error:
            print(f"{summary.id:24} left out: {error}")
            continue
        if len(found):
            replays.append(found)
            _line(summary.id, [found])
    if replays:
        _line("all", replays)
    else:
        print("No saved run holds its calibration and growth logs: decode with bastion and --save first.")


def _line(name: str, replays: list) -> None:
    plain, ahead = (np.concatenate([getattr(one, f"{rule}_nodes") for one in replays]) for rule in ("plain", "ahead"))
    rates = [sum(getattr(one, f"{rule}_surrogate").sum() for one in replays) / sum(getattr(one, f"{rule}_seconds").sum() for one in replays)
             for rule in ("plain", "ahead")]
    print(f"{name:24} {len(plain):6d} {int((plain != ahead).sum()):7d} {plain.mean():7.1f} {ahead.mean():11.1f} {rates[1] / rates[0]:18.4f}x")


def measured(arguments: argparse.Namespace) -> None:
    """Both rules in turn on the pair; times are the steps' own clocks."""
    from dataclasses import replace

    from bastion import decode, load_pair
    from bastion.decoding import resolve_method
    from bastion.models.quiet import quieten_libraries

    quieten_libraries()
    pair = load_pair(arguments.pair, drafter=arguments.drafter)
    built = resolve_method(f"bastion@{arguments.estimator}")
    methods = {"plain": replace(built, look_past=0), "past": replace(built, look_past=arguments.look_past)}
    for method in methods.values():   # kernels are chosen and the device is calibrated before anything counts
        list(decode(pair, PROMPTS[0], method, max_new_tokens=8, trace=False))
    tokens, seconds, nodes, ratios = dict.fromkeys(methods, 0), dict.fromkeys(methods, 0.0), {name: [] for name in methods}, []
    for turn in range(arguments.rounds):
        for place, prompt in enumerate(PROMPTS):
            rate = {}
            for name in sorted(methods, reverse=bool((turn + place) % 2)):
                steps = [s for s in decode(pair, prompt, methods[name], max_new_tokens=arguments.tokens, trace=False) if s.kind == "decode"]
                count, spent = sum(len(s.emitted) for s in steps), sum(s.seconds.total for s in steps)
                tokens[name] += count
                seconds[name] += spent
                nodes[name] += [s.nodes for s in steps]
                rate[name] = count / spent
            ratios.append(rate["past"] / rate["plain"])
    print(f"\nMeasured on {pair.device_name}, {pair.dtype_name}: {len(ratios)} decodes each way, in turn")
    for name in methods:
        print(f"{name:6} {tokens[name] / seconds[name]:8.2f} tokens/s, {np.mean(nodes[name]):6.1f} nodes a step")
    print(f"past / plain: median of decodes {median(ratios):.4f}x, of summed times "
          f"{tokens['past'] / seconds['past'] / (tokens['plain'] / seconds['plain']):.4f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", help="folder with saved runs; this machine's own unless given")
    parser.add_argument("--look-past", type=int, default=32, help="nodes looked at behind one that does not pay")
    parser.add_argument("--estimator", default="table", help="what predicts the verify times")
    parser.add_argument("--rounds", type=int, default=4, help="rounds over the prompts")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each decode")
    parser.add_argument("--pair", default="smollm2-135m", help="preset, or a folder with a target")
    parser.add_argument("--drafter", help="drafter of a target given by folder")
    parser.add_argument("--no-decode", action="store_true", help="predictions on saved runs only")
    arguments = parser.parse_args()
    try:
        predicted(RunStore(Path(arguments.runs)) if arguments.runs else RunStore(), arguments.look_past, arguments.estimator)
        if not arguments.no_decode:
            measured(arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
