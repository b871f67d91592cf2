"""`bastion compare`: methods side by side on the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bastion.cli.options import PairOptions, json_option, pair_options, sampling_options
from bastion.cli.output import ProgressLine, check_json_file, table, write_json
from bastion.errors import UserError


@click.command()
@click.option("--prompts", "prompt_files", metavar="FILE", multiple=True, required=True,
              help='JSON lines with {"turns": [...]} or {"prompt": ...}; may be given several times.')
@click.option("--limit", type=click.IntRange(min=1), help="Take the first so many prompts of each file.")
@click.option("--methods", default="ar,dflash,ddtree:16,bastion", show_default=True, metavar="LIST",
              help="Methods separated by commas; a comma before a digit belongs to the method (specinfer:4,2,1).")
@click.option("--order", type=click.Choice(["shuffled", "turning"]), default="shuffled", show_default=True,
              help="How methods follow each other on a prompt: drawn anew each time, or one further in the list.")
@click.option("--repeats", type=click.IntRange(min=1, max=100), default=1, show_default=True,
              help="Decode every prompt so often with every method; times are summed.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write one row per method (means over the sets) as a Markdown table to FILE.")
@sampling_options
@pair_options
@json_option
def compare(prompt_files: tuple[str, ...], limit: int | None, methods: str, order: str, repeats: int, markdown_file: str | None,
            sampling: dict[str, Any], pair_options: PairOptions, json_file: str | None) -> None:
    """Decode the same prompts with several methods, all of them on one prompt before the next, and compare.

    A method that the pair cannot run (no such drafter) is left out before anything is measured, and its row says why.
    """
    from bastion.jobs.prompt_files import read_prompt_set, split_methods

    names = split_methods(methods)
    sets = [read_prompt_set(Path(file), limit) for file in prompt_files]
    check_json_file(json_file)
    try:
        check_json_file(markdown_file)
    except UserError as error:
        raise UserError(str(error).replace("--json", "--markdown")) from None
    say = ProgressLine()
    try:
        result = _compare(sets, names, order, repeats, sampling, pair_options, say)
    finally:
        say.clear()
    if json_file != "-":
        _print(result)
    if markdown_file is not None:
        text = _markdown(result)
        click.echo(text) if markdown_file == "-" else Path(markdown_file).write_text(text + "\n", encoding="utf-8")
    write_json(result, json_file)


def _compare(sets: list[Any], names: list[str], order: str, repeats: int, sampling: dict[str, Any], options: PairOptions,
             say: ProgressLine) -> dict[str, Any]:
    from bastion.cli import pairs
    from bastion.decoding import resolve_method
    from bastion.jobs.compare import compare_methods, means_over_sets

    for name in names:  # before the pair is loaded: a misspelt method must not cost a minute
        resolve_method(name)
    pair = pairs.load(options, say)
    words = pairs.tokenizer(pair)

    def decode(messages: list[dict[str, str]], method: str, tokens: int | None) -> list[Any]:
        limits = {**sampling, "max_new_tokens": min(tokens or sampling["max_new_tokens"], sampling["max_new_tokens"])}
        return list(pairs.decode_with(pair, words.encode_prompt(messages), method, limits, trace=False, say=say))

    rows = compare_methods(decode, words.decode, sets, names, greedy=sampling["temperature"] == 0, say=say,
                           order=order, repeats=repeats, seed=sampling["seed"])
    return {"pair": pair.name, "device": pair.device_name, "dtype": pair.dtype_name, "dtype_why": pair.dtype_why, "sampling": sampling,
            "order": order, "repeats": repeats, "versions": pairs.versions(), "rows": rows, "means": means_over_sets(rows) if len(sets) > 1 else []}


def _print(result: dict[str, Any]) -> None:
    from bastion.figures import numbers
    from bastion.figures.number_type_words import number_type_words

    sampling, rows = result["sampling"], result["rows"]
    click.echo(f"{result['pair']} on {result['device']}, {number_type_words(result)}, temperature {sampling['temperature']:g}, "
               f"at most {sampling['max_new_tokens']} new tokens")

    def cells(row: dict[str, Any], name: str) -> tuple[str, ...]:
        return (row["method"], numbers.count(row["prompts"]), name, numbers.significant(row["tau"]), numbers.significant(row["tokens_per_second"]),
                numbers.ratio(row["speedup"]), numbers.significant(row["nodes_mean"]), _same(row))

    shown = [cells(row, row["prompt_set"]) for row in rows if row["refused"] is None]
    shown += [cells(row, f"mean of {row['sets']}") for row in result["means"]]
    click.echo(table(("method", "prompts", "set", "tau", "tokens/s", "speedup", "nodes", "same as ar"), shown))
    for method, why in {row["method"]: row["refused"] for row in rows if row["refused"] is not None}.items():
        click.echo(f"{method} was not measured: {why}")
    for row in rows:
        for difference in row["differences"]:
            gap = difference["top2_gap"]
            click.echo(f"{row['method']} leaves ar on {difference['prompt']} at token {difference['position']}, where the target's "
                       f"top-2 logit gap is {'unknown' if gap is None else f'{gap:.2g}'}")


def _markdown(result: dict[str, Any]) -> str:
    """One row per method; a method that could not run is a row that says why."""
    from bastion.figures import numbers

    means = {row["method"]: row for row in result["means"] or result["rows"]}
    lines = ["| method | tau | nodes a step | speed, plain decoding = 1 | same ids as `ar` |", "| --- | --- | --- | --- | --- |"]
    for method, why in {row["method"]: row["refused"] for row in result["rows"]}.items():
        row = means.get(method)
        cells = [f"not measured: {why}", "", "", ""] if why is not None or row is None else [
            numbers.significant(row["tau"]), numbers.significant(row["nodes_mean"]), numbers.ratio(row["speedup"]), _same(row)]
        lines.append("| " + " | ".join([f"`{method}`", *cells]) + " |")
    return "\n".join(lines)


def _same(row: dict[str, Any]) -> str:
    """How many prompts have ar's ids, and how many of the others part at a tie within rounding."""
    if row["identical_to_ar"] is None:
        return "sampled"
    ties = f", {row['near_ties']} at a tie" if row["near_ties"] else ""
    return f"{row['identical_to_ar']} of {row['prompts']}{ties}"
