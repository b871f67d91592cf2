"""Options that the benchmarks share, and the pair they load."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

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
    parser.add_argument("--dtype", default="auto", help="number type of the target")
    parser.add_argument("--keep-calibration", action="store_true", help="use the stored calibration in place of a new one")


def calibrated_pair(asked: argparse.Namespace, results: Results) -> Any:
    """The pair, calibrated now unless the stored calibration is to be kept or the results are being gone on
    with; what and where it is goes into the results' facts."""
    from bastion import load_pair
    from bastion.decoding.calibrate import calibrate, stored_calibration
    from bastion.models.quiet import quieten_libraries

    quieten_libraries()
    pair = load_pair(asked.pair, drafter=asked.drafter, dtype=asked.dtype)
    facts = results.content["facts"]
    if not asked.keep_calibration and not results.content["units"] and pair.drafter is not None:
        note("Calibrating")
        calibrate(pair, quick=True)
    found = stored_calibration(pair)
    facts.update(machine(), device=pair.device_name, dtype=pair.dtype_name, target=pair.target.name, drafter=pair.drafter_name)
    if found is not None:
        facts["calibration"] = {"made_at": found.made_at, "draft_seconds": found.draft_seconds, "other_seconds": found.other_seconds,
                                "raw_rmse": found.raw_rmse, "calibrated_rmse": found.calibrated_rmse, "id": found.id}
    return pair
