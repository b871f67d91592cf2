"""Whether the stop should look past a step of the cost, in three ways, each against the plain rule.

    python -m bench.look_past [FILE.jsonl ...] [--runs FOLDER] [--look-past 32] [--limit 20] [--no-decode] [--json FILE]

Predicted: every saved run that holds its calibration and its growth logs is stopped again by both rules; tokens
and times are the estimator's and the drafter's own.
Replayed, with prompt files: both rules grow trees over the target's greedy answers (`bastion.decoding.replay`);
tokens are those the target accepts, times still the estimator's.
Measured: the pair decodes each prompt with both, one after the other in shuffled order, and their speeds are
compared prompt by prompt.
"""

from __future__ import annotations

import argparse
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
from bench.ending import in_one_sentence, write_results
from bench.greedy_answers import known_answers
from bench.side_by_side import interval, measured, print_speeds, read_calibration

from bastion.analysis.latency_known import carried
from bastion.analysis.look_past import replay as replay_log
from bastion.decoding import resolve_method
from bastion.decoding.replay import KnownAnswer, replay
from bastion.errors import UserError
from bastion.latency import Calibration, build_estimator
from bastion.records import RunStore


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
            found = replay_log(run.steps, calibration, build_estimator(estimator, calibration), look_past)
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


def rules(estimator: str, look_past: int) -> dict:
    """`bastion@estimator` by the plain rule and looking past."""
    built = resolve_method(f"bastion@{estimator}")
    return {"plain": changed(built, look_past=0), "past": changed(built, look_past=look_past)}


def replayed(sets: dict[str, list[KnownAnswer]], calibration: Calibration, estimator: str, look_past: int) -> dict[str, dict]:
    """Tokens accepted per predicted second by both rules, a row a set; the ratio of every prompt among it."""
    methods = {name: method.calibrated(calibration) for name, method in rules(estimator, look_past).items()}
    latency, fixed = build_estimator(estimator, calibration), calibration.draft_seconds + calibration.other_seconds
    print(f"\nReplayed: tokens accepted, times predicted by `{estimator}`")
    print(f"{'set':10} {'tau plain':>10} {'past':>6} {'nodes plain':>12} {'past':>6} {'speed past / plain':>19}")
    rows, every = {}, []
    for name, answers in sets.items():
        totals, ratios = {rule: np.zeros(4) for rule in methods}, []
        for known in answers:
            rates = {}
            for rule, method in methods.items():
                found = replay(method, known)
                if not len(found.emitted):
                    continue
                contexts = len(known.prompt_ids) + np.cumsum(found.emitted) - found.emitted
                seconds = fixed + np.asarray(latency.seconds(found.nodes, contexts))
                totals[rule] += found.emitted.sum(), len(found.emitted), found.nodes.sum(), seconds.sum()
                rates[rule] = found.emitted.sum() / seconds.sum()
            if rates:
                ratios.append(rates["past"] / rates["plain"])
        rows[name] = {rule: {"tau": t[0] / t[1], "nodes": t[2] / t[1], "speed": t[0] / t[3]} for rule, t in totals.items()} | {"ratios": ratios}
        plain, past = rows[name]["plain"], rows[name]["past"]
        print(f"{name:10} {plain['tau']:10.3f} {past['tau']:6.3f} {plain['nodes']:12.2f} {past['nodes']:6.2f} {past['speed'] / plain['speed']:18.4f}x")
        every += ratios
    print("past / plain, prompt by prompt: " + said(np.array(every)))
    return rows


def said(ratios: np.ndarray) -> str:
    low, high = interval(ratios)
    return f"geometric mean {np.exp(np.log(ratios).mean()):.4f}x (95 % {low:.4f} to {high:.4f}, {len(ratios)} prompts)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="prompt sets to replay and to decode; none: saved runs alone")
    parser.add_argument("--runs", help="folder with saved runs; this machine's own unless given")
    parser.add_argument("--look-past", type=int, default=32, help="nodes looked at behind one that does not pay")
    parser.add_argument("--estimator", default="table", help="what predicts the verify times")
    parser.add_argument("--calibration", type=Path, help="a calibration file, in place of this device's stored one")
    parser.add_argument("--limit", type=int, default=20, help="prompts of each set to replay")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each replayed answer")
    parser.add_argument("--speed-prompts", type=int, default=2, help="prompts of each set to decode")
    parser.add_argument("--speed-tokens", type=int, default=48, help="tokens of each decode")
    parser.add_argument("--no-replay", action="store_true")
    parser.add_argument("--no-decode", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    result: dict = {}
    with in_one_sentence():
        predicted(RunStore(Path(asked.runs)) if asked.runs else RunStore(), asked.look_past, asked.estimator)
        if asked.files and not asked.no_replay:
            sets = known_answers(asked.files, asked.limit, asked.tokens)
            result["replayed"] = replayed(sets, read_calibration(asked.calibration), asked.estimator, asked.look_past)
        if asked.files and not asked.no_decode:
            built = rules(asked.estimator, asked.look_past)
            rows = measured(("ar", "plain", "past"), asked.files, asked.speed_prompts, asked.speed_tokens, build=lambda name: built.get(name, name))
            result["measured"] = rows
            print_speeds(rows, ("plain", "past"))
    write_results(asked.json, result)


if __name__ == "__main__":
    main()
