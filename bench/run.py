"""The bench: every stage and decoding end to end, in one table each.

    python -m bench.run --quick --prompts FOLDER [--json FILE] [--markdown FILE] [--only decoding,trees]
    python -m bench.run --prompts FOLDER --json FILE --markdown FILE

Stages: decoding (our methods beside Hugging Face `generate`), trees, commit, floor, page. With --json a run that
was ended goes on where it was; --quick takes under ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from bastion.errors import UserError
from bench import commit, end_to_end, floor, page, page_cost, ratios, tree_growth
from bench.ending import in_one_sentence
from bench.options import add_pair_options, calibrated_pair, note
from bench.results import Results
from bench.tables import Table, command_words, machine_words, report

Stage = Callable[[argparse.Namespace, Any, Results], tuple[Any, list[Table]]]
"""(options, pair, results) -> plain values for the results, and the tables to print."""


def _decoding(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[Any, list[Table]]:
    methods = tuple(asked.methods.split(",")) if asked.methods else (*end_to_end.LIBRARY, *end_to_end.OURS)
    prompts = end_to_end.read_prompts(asked.prompts, asked.limit)
    units = end_to_end.measure(pair, results, "decoding", prompts, methods, asked.tokens, note)
    rows, judged = end_to_end.summarise(units), ratios.judge(units)
    return {"rows": rows, "ratios": judged}, [end_to_end.tabulate(rows), ratios.tabulate(judged)]


def _trees(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[Any, list[Table]]:
    depth = pair.drafter.depth if pair.drafter is not None else 7
    rows = tree_growth.summarise(results.unit("trees", "all", lambda: tree_growth.measure(
        depth=depth, vocabulary=pair.target.vocab_size, rounds=asked.rounds)))
    return rows, [tree_growth.tabulate(rows)]


def _commit(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[Any, list[Table]]:
    rows = commit.summarise(results.unit("commit", "all", lambda: commit.measure(pair.target, asked.rounds)))
    return rows, [commit.tabulate(rows)]


def _floor(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[Any, list[Table]]:
    rows = floor.summarise(results.unit("floor", "all", lambda: floor.measure(pair, asked.rounds)), floor.weight_bytes(pair))
    return rows, [floor.tabulate(rows)]


def _page(asked: argparse.Namespace, pair: Any, results: Results) -> tuple[Any, list[Table]]:
    os.environ["BASTION_DTYPE"] = pair.dtype_name   # what the app and the command line load in, too
    times = page.summarise(results.unit("page", "times", lambda: page.measure(asked.page_rounds, asked.tokens, METHOD_OF_PAGE)))
    cost = page_cost.summarise(results.unit("page", "cost", lambda: page_cost.measure(asked.page_pairs, asked.tokens, METHOD_OF_PAGE)))
    return {"times": times, "cost": cost}, [page.tabulate(times), page_cost.tabulate(cost)]


METHOD_OF_PAGE = "bastion"
STAGES: dict[str, Stage] = {"decoding": _decoding, "trees": _trees, "commit": _commit, "floor": _floor, "page": _page}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    begun = perf_counter()
    asked = _options(argv)
    stages = list(STAGES) if asked.only is None else asked.only.split(",")
    for stage in stages:
        if stage not in STAGES:
            raise UserError(f"There is no stage {stage!r}; choose of {', '.join(STAGES)}.")
    if asked.markdown is not None and not asked.markdown.absolute().parent.is_dir():
        raise UserError(f"--markdown {asked.markdown}: there is no folder {asked.markdown.absolute().parent}.")
    if "decoding" in stages:
        end_to_end.read_prompts(asked.prompts, 1)  # said now, not behind the calibration
    about = {"benchmark": "run", "pair": asked.pair, "drafter": asked.drafter, "dtype": asked.dtype, "limit": asked.limit, "tokens": asked.tokens,
             "rounds": asked.rounds, "methods": asked.methods}
    results = Results(asked.json, about, {})
    pair = calibrated_pair(asked, results)
    facts, sections = results.content["facts"], []
    facts["command"] = command_words("bench.run", sys.argv[1:] if argv is None else argv)
    print(machine_words(facts))
    spent = facts.setdefault("seconds", {})
    spent["loading"] = spent.get("loading", 0.0) + perf_counter() - begun
    for stage in stages:
        note(f"Stage {stage}")
        values, tables = STAGES[stage](asked, pair, results)
        results.table(stage, values)
        sections.append((stage, tables))
        print(f"\n{stage}\n" + "\n\n".join(one.text() for one in tables), flush=True)
    print(f"\n{_taken(spent)}")
    if asked.markdown is not None:
        asked.markdown.write_text(report(facts["command"], facts, f"{datetime.now(UTC):%Y-%m-%d}. {_taken(spent)}", sections), encoding="utf-8")
    return results.content


def _taken(spent: dict[str, float]) -> str:
    return f"Took {sum(spent.values()) / 60:.1f} minutes: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in spent.items()) + "."


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_pair_options(parser, limit=0)
    parser.add_argument("--quick", action="store_true", help="one prompt of each set and fewer rounds")
    parser.add_argument("--only", help="stages by commas: " + ", ".join(STAGES))
    parser.add_argument("--methods", help="methods of the stage decoding, by commas, such as generate,ar,ddtree:16")
    parser.add_argument("--json", type=Path, help="file that the results go to and that is gone on with")
    parser.add_argument("--markdown", type=Path, help="file for the finished tables, with machine, versions and command")
    asked = parser.parse_args(argv)
    asked.limit = asked.limit or (1 if asked.quick else 4)
    asked.rounds, asked.page_rounds, asked.page_pairs = (15, 2, 6) if asked.quick else (60, 6, 24)
    return asked


if __name__ == "__main__":
    with in_one_sentence():
        main()
