"""Options that the benchmarks share, and the pair they load."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bench.measure import machine
from bench.results import Results

OWN_PROMPTS = Path(__file__).resolve().parent.parent / "assets" / "prompts"


def note(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def add_pair_options(parser: argparse.ArgumentParser, limit: int) -> None:
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help="folder with prompt sets, .jsonl; our own few unless given")
    parser.add_argument("--limit", type=int, default=limit, help="prompts of each set")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each decode")
    parser.add_argument("--pair", default="smollm2-135m", help="preset, or a folder with a target")
    parser.add_argument("--drafter", help="drafter of a target given by folder")
    parser.add_argument("--dtype", default="auto", help="number type of the target; auto: as the app and the commands choose it")
    parser.add_argument("--keep-calibration", action="store_true", help="use the stored calibration in place of a new one")


def calibrated_pair(asked: argparse.Namespace, results: Results) -> Any:
    """The pair, calibrated now unless the stored calibration is to be kept or the results are being gone on with; what and
    where it is goes into the results' facts. UserError when they were begun on another machine."""
    from bastion import load_pair
    from bastion.decoding.calibrate import calibrate, stored_calibration
    from bastion.models.quiet import quieten_libraries

    quieten_libraries()
    facts, begun = results.content["facts"], bool(results.content["units"])
    pair = load_pair(asked.pair, drafter=asked.drafter, dtype=facts.get("dtype", asked.dtype))
    here = {**machine(), "device": pair.device_name, "dtype": pair.dtype_name, "target": pair.target.name, "drafter": pair.drafter_name}
    if begun and any(facts.get(name) != here[name] for name in ("processor", "cores", "device", "versions")):
        raise UserError(f"{results.file} was begun on another machine or with other versions: name another file.")
    if not asked.keep_calibration and not begun and pair.drafter is not None:
        note("Calibrating")
        calibrate(pair, quick=True)
    found = stored_calibration(pair)
    if begun and found is not None and facts.get("calibration", {}).get("id") not in (None, found.id):
        note("The device was calibrated again since these results were begun; what is still to be measured uses the new calibration.")
    facts.update(here)
    if found is not None:
        facts["calibration"] = {"made_at": found.made_at, "draft_seconds": found.draft_seconds, "other_seconds": found.other_seconds,
                                "raw_rmse": found.raw_rmse, "calibrated_rmse": found.calibrated_rmse, "id": found.id}
    results.save()
    return pair
