"""Whether `bastion` buys as well as the best fixed budget: in turn with ddtree:4 to ddtree:64 on prompt sets.

    python -m bench.best_budget --prompts FOLDER [--limit 4] [--tokens 64] [--json FILE]

Temperature 0. Calibrates first unless told not to. With --json a run that was ended goes on where it was. Under the
speeds stand the numbers that say why: predicted against measured verification, the drafter's own estimate
against what was accepted, and the share of a step's wall that no stage accounts for.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bastion.cli.output import table
from bench.end_to_end import FIXED, measure, read_prompts, summarise, tabulate
from bench.ending import in_one_sentence
from bench.options import add_pair_options, calibrated_pair, note
from bench.results import Results

WITHIN = 0.97


def verdict(rows: list[dict[str, Any]], method: str = "bastion") -> dict[str, Any]:
    """`method` against the fixed budgets: on the mean over sets, and on each set against the budget that is
    best on the mean, and against the one that is best there."""
    by_name = {row["method"]: row for row in rows}
    fixed = [row for row in rows if row["method"] in FIXED]
    mine, best = by_name[method], max(fixed, key=lambda row: row["speed"])
    each = {name: {"against_best_on_mean": speed / best["sets"][name], "best_here": max(fixed, key=lambda row: row["sets"][name])["method"],
                   "against_best_here": speed / max(row["sets"][name] for row in fixed)} for name, speed in mine["sets"].items()}
    return {"method": method, "best": best["method"], "mean": mine["speed"] / best["speed"], "sets": each,
            "holds": mine["speed"] >= best["speed"] and all(one["against_best_on_mean"] >= WITHIN for one in each.values())}


def explain(units: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a method: where its steps' time goes, in ms, and how its predictions compare."""
    rows = []
    for method in next(iter(units.values())):
        told = [unit[method] for unit in units.values()]
        steps = sum(one["steps"] for one in told)
        if not steps:
            continue
        total = {name: sum(one[name] for one in told) for name in ("draft", "build", "verify", "commit", "seconds", "predicted", "surrogate", "tokens")}
        stages = sum(total[name] for name in ("draft", "build", "verify", "commit"))
        rows.append({"method": method, **{name: 1e3 * total[name] / steps for name in ("draft", "build", "verify", "commit")},
                     "unaccounted": 1 - stages / total["seconds"], "tau": total["tokens"] / steps, "surrogate": total["surrogate"] / steps,
                     "predicted_over_verify": total["predicted"] / total["verify"] if total["predicted"] else None})
    return rows


def print_why(rows: list[dict[str, Any]]) -> str:
    header = ["method", "draft ms", "build", "verify", "commit", "unaccounted", "tau", "S(n)", "predicted/verify"]
    return table(header, [[row["method"], *(f"{row[name]:.2f}" for name in ("draft", "build", "verify", "commit")), f"{row['unaccounted']:.1%}",
                           f"{row['tau']:.2f}", f"{row['surrogate']:.2f}",
                           f"{row['predicted_over_verify']:.2f}" if row["predicted_over_verify"] else ""] for row in rows])


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_pair_options(parser, limit=4)
    parser.add_argument("--methods", default="bastion", help="judged beside bastion, by commas, such as bastion@table,bastion@ema")
    parser.add_argument("--json", type=Path, help="file that the results go to and that is gone on with")
    asked = parser.parse_args(argv)
    prompts = read_prompts(asked.prompts, asked.limit)
    judged = list(dict.fromkeys(["bastion", *filter(None, asked.methods.split(","))]))
    methods = ["ar", *FIXED, *judged]
    results = Results(asked.json, {"benchmark": "best_budget", "methods": methods, "tokens": asked.tokens, "pair": asked.pair, "dtype": asked.dtype,
                                   "limit": asked.limit}, {})
    pair = calibrated_pair(asked, results)
    units = measure(pair, results, "best_budget", prompts, methods, asked.tokens, note)
    rows, why = summarise(units), explain(units)
    found = [verdict(rows, method) for method in judged]
    results.table("best_budget", {"rows": rows, "why": why, "verdicts": found})
    print(tabulate(rows).text(), print_why(why), sep="\n\n")
    for one in found:
        print(f"\n{one['method']} / {one['best']} (best on the mean): {one['mean']:.3f}; by set "
              + ", ".join(f"{name} {each['against_best_on_mean']:.3f} (best there {each['best_here']}: {each['against_best_here']:.3f})"
                          for name, each in one["sets"].items()))
        print(f"at least as fast on the mean and within {1 - WITHIN:.0%} on each set: {'yes' if one['holds'] else 'no'}")
    return results.content


if __name__ == "__main__":
    with in_one_sentence():
        main()
