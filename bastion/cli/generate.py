"""`bastion generate`: decode one prompt; the text streams, the record can be kept."""

from __future__ import annotations

import sys
from typing import Any

import click

from bastion.cli.options import (PairOptions, json_option, pair_options, read_prompt, sampling_options, token_ids)
from bastion.cli.output import ProgressLine, check_json_file, write_json


@click.command()
@click.option("--prompt", metavar="TEXT", help="The prompt; the model's chat template is put around it.")
@click.option("--prompt-file", metavar="F", help="A UTF-8 file with the prompt (- for standard input).")
@click.option("--prompt-ids", metavar="IDS", help="The prompt as token ids, 1,2,3, taken as they are.")
@click.option("--method", default="bastion", show_default=True, help="How to decode: ar, dflash, ddtree:N, bastion.")
@sampling_options
@click.option("--stop-token-ids", metavar="IDS", help="Token ids that end the output, 1,2,3.  [default: the model's own]")
@pair_options
@click.option("--save", is_flag=True, help="Keep the run, every tree traced, for `bastion runs` and the app.")
@json_option
def generate(prompt: str | None, prompt_file: str | None, prompt_ids: str | None, method: str, sampling: dict[str, Any],
             stop_token_ids: str | None, pair_options: PairOptions, save: bool, json_file: str | None) -> None:
    """Decode one prompt."""
    asked = read_prompt(prompt, prompt_file, prompt_ids)
    stops = token_ids(stop_token_ids, "--stop-token-ids") if stop_token_ids is not None else None
    check_json_file(json_file)
    say = ProgressLine()
    try:
        _generate(asked, method, {**sampling, "stop_token_ids": stops}, pair_options, save, json_file, say)
    finally:
        say.clear()


def _generate(asked: str | list[int], method: str, sampling: dict[str, Any], options: PairOptions, save: bool,
              json_file: str | None, say: ProgressLine) -> None:
    from bastion.cli import pairs
    from bastion.decoding import resolve_method

    resolve_method(method)  # before the pair is loaded: a misspelt method must not cost a minute
    pair = pairs.load(options, say)
    ids = asked if isinstance(asked, list) else pairs.tokenizer(pair).encode_prompt(asked)
    if sampling["stop_token_ids"] is None:
        sampling["stop_token_ids"] = sorted(pair.stop_token_ids)
    steps = pairs.decode_with(pair, ids, method, sampling, trace=save, say=say)
    info = pairs.run_info(pair, asked, ids, method, sampling)  # after it: the calibration may be new
    run = _record(steps, info, pair, save, None if json_file == "-" else sys.stdout, say)
    if json_file is not None:
        from bastion.records import run_to_json

        write_json(run_to_json(run), json_file)
    if json_file != "-":
        _summary(run, save)


def _record(steps: Any, info: dict[str, Any], pair: Any, save: bool, stream: Any, say: ProgressLine) -> Any:
    """Take every step as it comes: into the store when asked, its text onto `stream`. Returns the run."""
    from bastion.records import Run, RunStore, TextIncrements, run_totals, why_finished

    words = pair.tokenizer
    as_text = words.decode if words is not None else (lambda ids: "".join(f"{token} " for token in ids))
    writer = RunStore().create(info, text_of=words.token_texts if words is not None else None, decode=as_text) if save else None
    increments = TextIncrements(as_text)
    taken, pieces = [], []
    ended = None
    try:
        for step in steps:
            if writer is not None:
                writer.append(step)
            taken.append(step)
            pieces.append(increments.push(step.emitted))
            if stream is not None:
                say.clear()
                stream.write("".join(pieces[-1]))
                stream.flush()
    except KeyboardInterrupt:
        ended = "cancelled"
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
    if stream is not None:
        stream.write(increments.flush() + "\n")
    if writer is not None:
        return RunStore().open(writer.finish(finish_reason=ended))
    sampling, emitted = info["sampling"], [token for step in taken for token in step.emitted]
    reason = ended or why_finished(emitted, sampling["stop_token_ids"], sampling["max_new_tokens"])
    return Run({**info, "totals": run_totals(taken), "text": as_text(emitted), "finish_reason": reason}, taken, pieces)


def _summary(run: Any, saved: bool) -> None:
    """One line on standard error, so that standard output holds the text alone."""
    from bastion.figures import numbers
    from bastion.figures.number_type_words import number_type_words

    totals = run.info["totals"]
    words = [f"{numbers.count(totals['tokens'])} tokens", f"{numbers.count(totals['steps'])} steps",
             f"tau {numbers.significant(totals['tau'])}", numbers.rate(totals["tokens_per_second"])]
    if run.info.get("simulated"):
        words.append("simulated drafter")
    words.append(number_type_words(run.info))
    if saved:
        words.append(f"saved as {run.id}")
    click.echo(", ".join(words), err=True)
