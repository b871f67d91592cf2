"""`bastion bench`: prompt sets times methods times temperatures, resumed wherever it was stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from bastion.cli.options import PairOptions, json_option, pair_options
from bastion.cli.output import ProgressLine, check_json_file, table, write_json
from bastion.errors import UserError

INTERRUPTED = 130
FORMATS = ("csv", "markdown", "latex")


def _files(command: Callable[..., Any]) -> Callable[..., Any]:
    for name in reversed(FORMATS):
        command = click.option(f"--{name}", f"{name}_file", metavar="FILE", help=f"Write the table as {name} to FILE.")(command)
    return command


@click.command()
@click.option("--sets", default="ours", show_default=True, metavar="LIST",
              help="Prompt sets by name, groups (paper-short, longbench) or JSON lines files, separated by commas.")
@click.option("--methods", default="ar,dflash,ddtree:16,bastion", show_default=True, metavar="LIST",
              help="Methods separated by commas; a comma before a digit belongs to the method (specinfer:4,2,1).")
@click.option("--temperatures", default="0", show_default=True, metavar="LIST", help="Temperatures separated by commas.")
@click.option("--limit", type=click.IntRange(min=1), help="Take so many prompts of each set.")
@click.option("--max-new-tokens", metavar="N", type=click.IntRange(min=1), default=256, show_default=True, help="Stop each decode after this many tokens.")
@click.option("--seed", metavar="N", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Seed of the sampling.")
@click.option("--keep-runs", is_flag=True, help="Save every decode as a run, every tree traced.")
@click.option("--again", is_flag=True, help="Measure again although this request is finished.")
@click.option("--list", "listing", is_flag=True, help="List the prompt sets and the earlier benchmarks, and measure nothing.")
@pair_options
@json_option
@_files
def bench(sets: str, methods: str, temperatures: str, limit: int | None, max_new_tokens: int, seed: int, keep_runs: bool, again: bool,
          listing: bool, pair_options: PairOptions, json_file: str | None, **files: str | None) -> int:
    """Measure methods on prompt sets. The same command goes on where it was stopped."""
    from bastion.jobs.benchmark_request import BenchmarkRequest, split_temperatures
    from bastion.jobs.prompt_files import split_methods
    from bastion.records.benchmark_store import BenchmarkStore

    store = BenchmarkStore()
    if listing:
        _list(store)
        return 0
    wanted = {name: files[f"{name}_file"] for name in FORMATS if files[f"{name}_file"] is not None}
    for name, destination in {"json": json_file, **wanted}.items():
        _check_file(name, destination)
    request = BenchmarkRequest(tuple(sets.split(",")), tuple(split_methods(methods)), split_temperatures(temperatures), limit,
                               max_new_tokens, seed, _choice(pair_options), keep_runs).check()
    say = ProgressLine()
    bench_id, stopped = "", False
    try:
        bench_id = _find(request, store, again, say)
        if not store.open(bench_id).finished:
            _measure(bench_id, request, store, pair_options, say)
    except KeyboardInterrupt:
        stopped = True
    finally:
        say.clear()
    if stopped:
        _say_how_to_go_on(bench_id, store)
        return INTERRUPTED
    _report(store.open(bench_id), json_file, wanted)
    return 0


def _check_file(name: str, destination: str | None) -> None:
    try:
        check_json_file(destination)
    except UserError as error:
        raise UserError(str(error).replace("--json", f"--{name}")) from None


def _choice(options: PairOptions) -> Any:
    from bastion.jobs.request import PairChoice

    target, drafter = ((options.target, options.drafter) if options.target else (None, None))
    # Folders by their absolute path: the same request from another folder is the same.
    target, drafter, small_lm = (str(Path(one).expanduser().absolute()) if one and Path(one).expanduser().exists() else one
                                 for one in (target, drafter, options.small_lm))
    return PairChoice(None if target else options.name, target, drafter, options.device, options.dtype, small_lm)


def _find(request: Any, store: Any, again: bool, say: ProgressLine) -> str:
    from bastion.jobs.benchmark import find_or_create

    bench_id, found = find_or_create(request, store, again, say=lambda words, share, left: say(words))
    say.clear()
    if found:
        benchmark = store.open(bench_id)
        words = ("is finished; --again measures it anew" if benchmark.finished
                 else f"goes on: {benchmark.done} of {benchmark.total} decodes are done")
        click.echo(f"Benchmark {bench_id} of this request {words}.", err=True)
    return bench_id


def _measure(bench_id: str, request: Any, store: Any, options: PairOptions, say: ProgressLine) -> None:
    from bastion.cli import pairs
    from bastion.jobs.benchmark import run_benchmark, session_notes
    from bastion.jobs.benchmark_decoder import PairDecoder
    from bastion.jobs.benchmark_runs import RunKeeper
    from bastion.records import RunStore

    if store.open(bench_id).held:
        raise UserError(f"Benchmark {bench_id} is at work in another process: wait for it, or stop it there first.")
    decoder = PairDecoder(pairs.load(options, say))
    keeper = RunKeeper(RunStore(), decoder) if request.keep_runs else None
    benchmark = run_benchmark(bench_id, store, decoder, lambda words, share, left: say(words + _left(left), share), keeper)
    say.clear()
    for note in session_notes(benchmark.info):
        click.echo(note, err=True)


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f", {seconds:.0f} s left" if seconds < 90 else f", {seconds / 60:.0f} min left"


def _say_how_to_go_on(bench_id: str, store: Any) -> None:
    if not bench_id:
        click.echo("bastion: stopped before anything was measured", err=True)
        return
    benchmark = store.open(bench_id)
    click.echo(f"bastion: stopped after {benchmark.done} of {benchmark.total} decodes; the same command goes on from there", err=True)


def _report(benchmark: Any, json_file: str | None, wanted: dict[str, str]) -> None:
    from bastion.analysis.benchmark import benchmark_table, differences
    from bastion.analysis.benchmark_published import published
    from bastion.figures import benchmark_tables as tables

    turns = {(prompt.prompt_set, prompt.id): len(prompt.turns) for prompt in benchmark.prompts}
    cells = benchmark_table(benchmark.rows, benchmark.sets, benchmark.methods, benchmark.temperatures, turns)
    apart = differences(benchmark.rows)
    beside = [one for one in published() if one.prompt_set in tables.columns(cells) and one.temperature in benchmark.temperatures]
    note = tables.where_words(benchmark.info)
    if json_file != "-":
        _print(cells, apart, note)
    write_json(tables.json_object(cells, apart, benchmark.info, beside), json_file)
    texts = {"csv": lambda: tables.csv_text(cells, beside), "markdown": lambda: tables.markdown(cells, beside, note),
             "latex": lambda: tables.latex(cells, beside, note)}
    for name, destination in wanted.items():
        _write(texts[name](), destination, name)


def _print(cells: Sequence[Any], apart: Sequence[Any], note: str) -> None:
    from bastion.figures import numbers

    click.echo(note)
    click.echo(table(("method", "T", "set", "prompts", "tau", "tokens/s", "speedup", "95 %", "nodes", "same as ar"), [
        (cell.method, f"{cell.temperature:g}", cell.prompt_set, numbers.count(cell.prompts), numbers.significant(cell.tau),
         numbers.significant(cell.tokens_per_second), numbers.ratio(cell.speedup),
         "" if cell.method == "ar" else numbers.NONE if cell.low is None else f"{numbers.significant(cell.low)}-{numbers.significant(cell.high)}",
         numbers.significant(cell.nodes_mean), "sampled" if cell.identical is None else f"{cell.identical} of {cell.prompts}")
        for cell in cells]))
    for one in apart:
        gap = "unknown" if one.top2_gap is None else f"{one.top2_gap:.2g}"
        click.echo(f"{one.method} leaves ar on {one.prompt_set} {one.prompt} at token {one.position}, where the target's top-2 logit gap is {gap}")


def _write(text: str, destination: str, name: str) -> None:
    if destination == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(destination).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--{name} {destination} cannot be written ({error.strerror}).") from error


def _list(store: Any) -> None:
    from bastion.jobs.prompt_sets import cached_file
    from bastion.jobs.prompt_sources import HUB

    click.echo("Prompt sets")
    click.echo(table(("set", "from", "here"), [("ours", "this program", "yes"), *(
        (source.name, source.hub, "yes" if cached_file(source.name).is_file() else "to be fetched") for source in HUB.values())]))
    earlier = store.list()
    if earlier:
        click.echo("\nBenchmarks")
        click.echo(table(("id", "sets", "methods", "T", "pair", "done"), [
            (one.id, ",".join(one.sets), ",".join(one.methods), ",".join(f"{t:g}" for t in one.temperatures), one.pair,
             f"{one.done} of {one.total}") for one in earlier]))
