"""`bastion calibrate`: measure this device, so that trees stop where they stop paying; list what was measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from bastion.cli.options import PairOptions, json_option, pair_options
from bastion.cli.output import ProgressLine, check_json_file, table, write_json


@click.command()
@click.option("--quick", is_flag=True, help="A small grid, under a minute on two cores; what `generate` does by itself.")
@click.option("--list", "listed", is_flag=True, help="Measure nothing: list the calibrations stored here, those that saved runs carry, and shipped profiles.")
@pair_options
@json_option
def calibrate(quick: bool, listed: bool, pair_options: PairOptions, json_file: str | None) -> None:
    """Measure verify, draft and other time of a pair on this device and store it."""
    check_json_file(json_file)
    if listed:
        _list(json_file)
        return
    from bastion.analysis.latency_estimators import summary
    from bastion.cli import pairs

    say = ProgressLine()
    try:
        pair = pairs.load(pair_options, say)
        from bastion.decoding.calibrate import calibrate as measure

        calibration = measure(pair, quick=quick, progress=say)
    finally:
        say.clear()
    if json_file != "-":
        _print(calibration)
    if json_file is not None:
        from bastion.records.run_json import plain

        write_json(plain({**asdict(calibration), **summary(calibration), "path": str(calibration.path)}), json_file)


def _list(json_file: str | None) -> None:
    from bastion.analysis.latency_known import known_calibrations
    from bastion.figures import numbers
    from bastion.records import RunStore
    from bastion.records.run_json import plain

    known = known_calibrations(RunStore())
    if json_file != "-":
        rows = [(one.calibration.made_at, one.calibration.target, one.calibration.dtype, one.calibration.device_name or one.calibration.device_key,
                 numbers.seconds(one.calibration.calibrated_rmse), numbers.seconds(one.calibration.raw_rmse),
                 "stored" if one.path else "shipped" if one.calibration.shipped else f"in {len(one.runs)} runs") for one in known.found]
        header = ("made", "target", "dtype", "device", "fitted RMSE", "raw RMSE", "where")
        click.echo(table(header, rows) if rows else "No calibration yet: `python -m bastion calibrate` makes one.")
        for sentence in known.damaged:
            click.echo(sentence, err=True)
    if json_file is not None:
        entries = [{"id": one.id, "path": str(one.path) if one.path else None, "runs": one.runs, **one.calibration.to_json()} for one in known.found]
        write_json(plain({"calibrations": entries, "damaged": known.damaged, "runs_with_summary_only": known.summaries}), json_file)


def _print(calibration: Any) -> None:
    from bastion.analysis.latency_estimators import crossovers
    from bastion.figures import numbers
    from bastion.figures.latency_words import crossover_words

    peaks = calibration.peaks
    held_out = sum(calibration.held_out)
    lines = [
        ("device", f"{calibration.device_name or calibration.device_key}, {calibration.dtype}, {calibration.attention} attention"),
        ("target", calibration.target),
        ("drafter", calibration.drafter or "none"),
        ("peaks", f"{numbers.significant(peaks.flops_per_second / 1e12)} TFLOP/s, {numbers.significant(peaks.bytes_per_second / 1e9)} GB/s "
                  f"({calibration.peaks_source})"),
        ("probes", f"{len(calibration.probes)}, {held_out} of them held out from the fit"),
        ("raw RMSE", f"{numbers.seconds(calibration.raw_rmse)} on the held-out points, before the fit"),
        ("fitted RMSE", f"{numbers.seconds(calibration.calibrated_rmse)} on the held-out points"),
        *(("crossover", f"context {numbers.count(at.context)}: {crossover_words(at)}") for at in crossovers(calibration)),
        ("draft", numbers.seconds(calibration.draft_seconds)),
        ("other", numbers.seconds(calibration.other_seconds)),
        ("stored in", str(calibration.path)),
    ]
    for name, value in lines:
        click.echo(f"{name:<12} {value}")
