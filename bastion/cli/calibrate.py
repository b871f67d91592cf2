"""`bastion calibrate`: measure this device, so that trees stop where they stop paying."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from bastion.cli.options import PairOptions, json_option, pair_options
from bastion.cli.output import ProgressLine, check_json_file, write_json


@click.command()
@click.option("--quick", is_flag=True, help="A small grid, under a minute on two cores; what `generate` does by itself.")
@pair_options
@json_option
def calibrate(quick: bool, pair_options: PairOptions, json_file: str | None) -> None:
    """Measure verify, draft and other time of a pair on this device and store it."""
    from bastion.cli import pairs

    check_json_file(json_file)
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

        write_json(plain(asdict(calibration)), json_file)


def _print(calibration: Any) -> None:
    from bastion.figures import numbers

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
        ("draft", numbers.seconds(calibration.draft_seconds)),
        ("other", numbers.seconds(calibration.other_seconds)),
        ("stored in", str(calibration.path)),
    ]
    for name, value in lines:
        click.echo(f"{name:<12} {value}")
