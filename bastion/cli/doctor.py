"""`bastion doctor`: why acceptance is low, by undoing one suspected fault at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bastion.cli.options import PairOptions, json_option, pair_options
from bastion.cli.output import ProgressLine, check_json_file, table, write_json


@click.command()
@click.option("--prompts", "prompt_file", metavar="FILE", help='Questions as JSON lines with {"turns": [...]} or {"prompt": ...}, in place '
              "of the doctor's own.")
@click.option("--limit", type=click.IntRange(min=1), help="Take the first so many prompts.")
@click.option("--tests", metavar="NAMES", default="", help="Which tests to make, with commas between; all where none is named.")
@click.option("--tokens", metavar="N", type=click.IntRange(min=2, max=4096), default=48, show_default=True, help="Tokens of each answer.")
@click.option("--nodes", metavar="N", type=click.IntRange(min=1, max=256), default=16, show_default=True,
              help="Nodes of the best-first tree, beside the root, that tau is measured with.")
@pair_options
@json_option
def doctor(prompt_file: str | None, limit: int | None, tests: str, tokens: int, nodes: int, pair_options: PairOptions, json_file: str | None) -> None:
    """Say why acceptance is low: undo one suspected fault after another and measure tau with and without it.

    All tests on the ten questions take about two minutes for the default pair on two quiet cores; --limit 3 takes under one.
    """
    check_json_file(json_file)
    asked = _prompts(prompt_file, limit)
    from bastion.cli import pairs

    say = ProgressLine()
    if not tests and limit is None and not asked:
        say("All tests on ten questions: about two minutes for the default pair on two quiet cores")
    try:
        from bastion.decoding.doctor import PROMPTS, checks_named, examine, report_json

        checks = checks_named(tests.split(","))
        pair = pairs.load(pair_options, say)
        folder = Path(pair_options.drafter).expanduser() if pair_options.drafter else None
        report = examine(pair, (asked or PROMPTS)[:limit], tokens, nodes, checks, say=say,
                         drafter_folder=folder if folder is not None and folder.is_dir() else None)
    finally:
        say.clear()
    made = {**report_json(report), "device": pair.device_name, "dtype": pair.dtype_name}
    if json_file != "-":
        _print(made)
    write_json(made, json_file)


def _prompts(file: str | None, limit: int | None) -> tuple[str, ...]:
    if file is None:
        return ()
    from bastion.jobs.prompt_files import read_prompt_set

    return tuple(conversation.turns[0] for conversation in read_prompt_set(Path(file), limit).conversations)


def _print(report: dict[str, Any]) -> None:
    from bastion.figures import doctor_words as words

    click.echo(words.headline(report))
    for place, finding in enumerate(report["findings"], start=1):
        click.echo(f"{place}. {words.finding(finding)}")
    click.echo("")
    click.echo(table(words.HEADER, words.rows(report)))
    for name, reason in report["not_tested"].items():
        click.echo(f"Not tested: {name}. {reason}")
    click.echo(words.method(report))
