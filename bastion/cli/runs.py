"""`bastion runs`: list, show, name, export, import, delete and restore recorded runs. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from bastion.cli.options import json_option
from bastion.cli.output import check_json_file, table, write_json
from bastion.errors import UserError


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def runs(context: click.Context, json_file: str | None) -> None:
    """List, show, name, export, import, delete and restore recorded runs."""
    if context.invoked_subcommand is None:
        _list(json_file)


@runs.command("list")
@json_option
def list_runs(json_file: str | None) -> None:
    """List all runs, newest first."""
    _list(json_file)


@runs.command()
@click.argument("run_id")
@json_option
def show(run_id: str, json_file: str | None) -> None:
    """Show one run: what was asked, what came out, what it cost."""
    from bastion.records import run_to_json

    check_json_file(json_file)
    run = _store().open(run_id)
    if json_file != "-":
        _print_run(run)
    if json_file is not None:
        write_json(run_to_json(run), json_file)


@runs.command()
@click.argument("run_id")
@click.argument("file")
@json_option
def export(run_id: str, file: str, json_file: str | None) -> None:
    """Write the run to FILE, a zip that `runs import` reads."""
    check_json_file(json_file)
    _store().export_zip(run_id, file)
    if json_file != "-":
        click.echo(f"Run {run_id} is in {file}")
    write_json({"id": run_id, "file": file}, json_file)


@runs.command()
@click.argument("run_id")
@click.argument("step", type=click.IntRange(min=1))
@click.argument("file")
def graph(run_id: str, step: int, file: str) -> None:
    """Write the tree of one step of a run to FILE as GraphML, for networkx, Gephi or yEd."""
    import networkx

    from bastion.analysis.graph import tree_graph

    run = _store().open(run_id)
    if step >= len(run.steps):
        raise UserError(f"Run {run_id} has steps 1 to {len(run.steps) - 1}; there is no step {step}.")
    try:
        networkx.write_graphml(tree_graph(run.steps[step], run.text_of), file)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}): check the path.") from error
    click.echo(f"Step {step} of run {run_id} is in {file}")


@runs.command()
@click.argument("run_id")
@click.argument("file")
@click.option("--step", type=click.IntRange(min=0), help="Open at this step; the first one otherwise.")
def html(run_id: str, file: str, step: int | None) -> None:
    """Write the run to FILE as one HTML page with its tree stepper, which needs no network."""
    from bastion.figures.html_export import run_html
    from bastion.figures.numbers import storage

    run = _store().open(run_id)
    if step is not None and step >= len(run.steps):
        raise UserError(f"Run {run_id} has steps 0 to {len(run.steps) - 1}; there is no step {step}.")
    page = run_html(run, step).encode("utf-8")
    _write_whole(Path(file), page)
    click.echo(f"Run {run_id} is in {file}, {storage(len(page))}")


@runs.command()
@click.argument("run_id")
@click.argument("title")
def rename(run_id: str, title: str) -> None:
    """Give the run the title TITLE."""
    _store().rename(run_id, title)
    click.echo(f"Run {run_id} has a new title")


@runs.command()
@click.argument("run_id")
@click.argument("text")
def note(run_id: str, text: str) -> None:
    """Keep TEXT as the run's note; an empty one ("") takes it away."""
    _store().note(run_id, text)
    click.echo(f"Run {run_id} has {'a new' if text.strip() else 'no'} note")


@runs.command("import")
@click.argument("file")
@json_option
def import_run(file: str, json_file: str | None) -> None:
    """Check the zip FILE and add its run or runs; nothing in it is executed."""
    check_json_file(json_file)
    if not Path(file).is_file():
        raise UserError(f"There is no file {file}: give a zip that `runs export` wrote.")
    ids = _store().import_zips(file)
    if json_file != "-":
        for run_id in ids:
            click.echo(f"Run {run_id} was added")
    write_json({"id": ids[0]} if len(ids) == 1 else {"ids": ids}, json_file)


@runs.command()
@click.argument("run_id")
@click.option("--now", is_flag=True, help="Remove it for good; it cannot be restored.")
@json_option
def delete(run_id: str, now: bool, json_file: str | None) -> None:
    """Delete one run. `runs restore` brings it back for some days, unless --now."""
    from bastion.records.trash import KEPT_DAYS

    check_json_file(json_file)
    if now:
        _store().delete(run_id)
    else:
        _store().trash(run_id)
    if json_file != "-":
        click.echo(f"Run {run_id} is deleted" + ("" if now else f"; `runs restore {run_id}` brings it back for {KEPT_DAYS} days"))
    write_json({"id": run_id}, json_file)


@runs.command()
@click.argument("run_id")
def restore(run_id: str) -> None:
    """Bring a deleted run back."""
    _store().restore(run_id)
    click.echo(f"Run {run_id} is back")


def _write_whole(file: Path, raw: bytes) -> None:
    """To `file`, whole or not at all."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(raw)
        os.replace(partial, file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{file} cannot be written ({error.strerror}): check the path.") from error


def _store() -> Any:
    from bastion.records import RunStore

    return RunStore()


def _list(json_file: str | None) -> None:
    from dataclasses import asdict

    from bastion.figures import numbers

    check_json_file(json_file)
    store = _store()
    summaries = store.list()
    if json_file != "-":
        if summaries:
            header = ("run", "made (UTC)", "pair", "method", "tokens", "tau", "tokens/s", "ended")
            click.echo(table(header, [(s.id, s.created[:16].replace("T", " "), s.pair, s.method, numbers.count(s.tokens),
                                       numbers.significant(s.tau), numbers.significant(s.tokens_per_second), s.finish_reason or "")
                                      for s in summaries]))
        else:
            click.echo(f"No runs in {store.root} yet: `python -m bastion generate --save` or the app records one.")
    write_json({"runs": [asdict(summary) for summary in summaries]}, json_file)


def _print_run(run: Any) -> None:
    from bastion.figures import numbers
    from bastion.figures.number_type_words import number_type_words

    info, totals = run.info, run.info["totals"]
    lines = [
        ("run", f"{run.id}{'' if run.complete else ' (cut short)'}"),
        ("made", info["created"]),
        ("pair", info["pair"]),
        ("device", info["device"]),
        ("number type", number_type_words(info)),
        ("method", info["method"]),
        ("tokens", f"{numbers.count(totals.get('tokens'))} in {numbers.count(totals.get('steps'))} steps"),
        ("tau", numbers.significant(totals.get("tau"))),
        ("nodes a step", numbers.significant(totals.get("nodes_mean"))),
        ("speed", numbers.rate(totals.get("tokens_per_second"))),
        ("prefill", numbers.seconds(totals.get("seconds_prefill"))),
        ("decode", numbers.seconds(totals.get("seconds_decode"))),
        ("ended", info["finish_reason"] or ""),
    ]
    for name, value in lines:
        click.echo(f"{name:<13} {value}")
    click.echo(f"\n{run.text}")
