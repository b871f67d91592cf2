"""`bastion train`: a drafter for a target, from a file of prompts."""

from __future__ import annotations

from pathlib import Path

import click

from bastion.cli.options import DEFAULT_PRESET, Finite, json_option
from bastion.cli.output import check_json_file, write_json
from bastion.errors import UserError


def _numbers(_context, option, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    from bastion.cli.options import token_ids

    return tuple(token_ids(text, option.opts[0]))


@click.command()
@click.option("--target", metavar="X", default=DEFAULT_PRESET, show_default=True, help="Target: the default preset, a folder or a hub name.")
@click.option("--kind", type=click.Choice(("dflash", "eagle3", "small-lm")), default="dflash", show_default=True,
              help="A block-diffusion drafter in DFlash's layout, a head in EAGLE-3's, or a small language model.")
@click.option("--prompts", metavar="FILE", type=click.Path(path_type=Path), multiple=True,
              help="JSON lines with `prompt` or `turns`, or ready dialogues with `prompt_ids` and `output_ids`. Repeatable.")
@click.option("--answers", metavar="DIR", type=click.Path(path_type=Path),
              help="Answers that a run of either kind gathered (its folder `answers`); no more are gathered then.")
@click.option("--openers", metavar="FILE", type=click.Path(path_type=Path), help="JSON lines with the first words of user turns for the target to write.")
@click.option("--avoid", metavar="FILE", type=click.Path(path_type=Path), multiple=True, help="Prompts to measure on: nothing near them is trained on. Repeatable.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), required=True, help="Folder of the drafter, its log and its data; continued when it exists.")
@click.option("--answer-tokens", type=click.IntRange(min=1), default=2_000_000, show_default=True, help="Gather this many answer tokens first.")
@click.option("--gather-minutes", type=Finite(min=0, min_open=True), help="Gather no longer than this, whatever is there by then.")
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=144, show_default=True, help="Longest answer.")
@click.option("--batch", type=click.IntRange(min=1), default=64, show_default=True, help="Prompts answered at once.")
@click.option("--minutes", type=Finite(min=0, min_open=True), default=60.0, show_default=True, help="Minutes of training, all parts together.")
@click.option("--steps", type=click.IntRange(min=1), help="Train so many steps in place of --minutes.")
@click.option("--dialogues-per-step", type=click.IntRange(min=1), default=16, show_default=True, help="Dialogues in one training step.")
@click.option("--anchors", type=click.IntRange(min=1), help="Places in each dialogue to draft from in one step.  [default: dflash 16, eagle3 64]")
@click.option("--layers", type=click.IntRange(min=1), default=4, show_default=True, help="dflash: layers of the drafter.")
@click.option("--block-size", type=click.IntRange(min=2), default=8, show_default=True, help="dflash: the anchor and the positions drafted behind it.")
@click.option("--draft-vocabulary", type=click.IntRange(min=2), default=8192, show_default=True, help="eagle3: tokens the head can draft, the most frequent in the answers.")
@click.option("--unroll", type=click.IntRange(min=1), default=4, show_default=True, help="eagle3: steps on the head's own outputs in training.")
@click.option("--feature-layers", callback=_numbers, metavar="A,B,C", help="Target layers the drafter reads.  [default: dflash five, evenly spaced; eagle3 its usual three]")
@click.option("--start-layers", callback=_numbers, metavar="A,B,C", help="small-lm: target layers it starts from.  [default: the first two and the last]")
@click.option("--mask-id", type=click.IntRange(min=0), help="dflash: token id that marks slots to fill.  [default: the last spare special token]")
@click.option("--random-start", is_flag=True, help="Random weights in place of the target's last layers.")
@click.option("--learning-rate", type=Finite(min=0, min_open=True), default=1e-3, show_default=True, help="Largest learning rate; it warms up and falls again.")
@click.option("--evaluate-every", type=Finite(min=0, min_open=True), default=5.0, show_default=True, help="Minutes between held-out measurements.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of data, order and weights.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@json_option
def train(target, kind, prompts, answers, openers, avoid, out, answer_tokens, gather_minutes, max_new_tokens, batch, minutes, steps, dialogues_per_step,
          anchors, layers, block_size, draft_vocabulary, unroll, feature_layers, start_layers, mask_id, random_start, learning_rate, evaluate_every, seed, device,
          json_file) -> None:
    """Train a drafter: the target answers prompts, the drafter learns to guess ahead. The best weights by held-out
    acceptance are kept, and training stops early when it no longer rises.

    Interrupt it any time; the same command goes on where it stopped.
    """
    check_json_file(json_file)
    for file in (*prompts, *avoid, *((openers,) if openers else ())):
        if not file.is_file():
            raise UserError(f"There is no file {file}; give a JSON-lines file.")
    if not prompts and answers is None:
        raise UserError("Give at least one file of prompts with --prompts, or a folder of gathered answers with --answers.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {out} cannot be made ({error.strerror}); give another --out.") from error
    from bastion.drafters.training.loop import Plan
    from bastion.drafters.training.run import TrainingJob, run

    job = TrainingJob(
        target=_folder_of(target), prompts=prompts, out=out, kind=kind, answers=answers, openers=openers, avoid=avoid, answer_tokens=answer_tokens,
        gather_minutes=gather_minutes, max_new_tokens=max_new_tokens, batch=batch, layers=layers, block_size=block_size, feature_layers=feature_layers,
        mask_token_id=mask_id, draft_vocabulary=draft_vocabulary, unroll=unroll, start_layers=start_layers, random_start=random_start,
        plan=Plan(minutes=minutes, steps=steps, anchors_per_dialogue=anchors or {"dflash": 16, "eagle3": 64, "small-lm": 1}[kind], dialogues_per_step=dialogues_per_step,
                  learning_rate=learning_rate, evaluate_every=evaluate_every, seed=seed),
    )
    result = run(job, device=device, say=lambda words: click.echo(words, err=json_file == "-"))
    if json_file is not None:
        write_json(result, json_file)


def _folder_of(target: str) -> str:
    if target != DEFAULT_PRESET:
        return target
    from bastion.models.fetch import fetch_default

    return str(fetch_default())
