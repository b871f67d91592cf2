"""Loading the pair that the options name, fetching the default target when it is not here yet."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

from bastion import __version__
from bastion.cli.options import PairOptions
from bastion.cli.output import ProgressLine
from bastion.errors import UserError


def load(options: PairOptions, say: ProgressLine) -> Any:
    """The pair, ready to decode. Raises UserError."""
    if options.is_default:
        from bastion.models.fetch import default_model_ready, fetch_default

        if not default_model_ready():
            fetch_default(progress=say)
    say.briefly(f"Loading {options.name}")
    from bastion import load_pair
    from bastion.models.quiet import quieten_libraries

    quieten_libraries()

    try:
        return load_pair(options.name, drafter=options.drafter, small_lm=options.small_lm, device=options.device, dtype=options.dtype,
                         on_notice=say)
    finally:
        say.clear()


def tokenizer(pair: Any) -> Any:
    """The pair's tokenizer; UserError when it has none, and text cannot become ids."""
    if pair.tokenizer is None:
        raise UserError(f"{pair.name} has no tokenizer: give the prompt as --prompt-ids.")
    return pair.tokenizer


def decode_with(pair: Any, prompt_ids: list[int], method: str, sampling: dict[str, Any], trace: bool, say: ProgressLine) -> Iterator[Any]:
    """`bastion.decode`, which checks everything and calibrates, where the method needs it, before it returns."""
    from bastion import decode

    steps = decode(pair, prompt_ids, method=method, trace=trace, on_notice=say, **sampling)
    say.briefly(f"Reading the prompt ({len(prompt_ids)} tokens)")
    return steps


def run_info(pair: Any, prompt: str | list[int], prompt_ids: list[int], method: str, sampling: dict[str, Any]) -> dict[str, Any]:
    """What a run says of itself, as a run of the app does; `bastion.records.schema.INFO_DEFAULTS` names the keys."""
    from bastion.decoding.calibrate import usable_calibration
    from bastion.decoding.methods import drafter_depth, is_simulated
    from bastion.jobs.engine import described

    calibration = usable_calibration(pair)
    return {
        "title": " ".join(prompt.split())[:80] if isinstance(prompt, str) else f"{len(prompt)} token ids",
        "prompt": prompt if isinstance(prompt, str) else None,
        "prompt_ids": list(prompt_ids),
        "pair": pair.name,
        "method": method,
        "sampling": sampling,
        "device": pair.device_name,
        "dtype": pair.dtype_name,
        "dtype_why": pair.dtype_why,
        "attention": pair.attention,
        "drafter_depth": drafter_depth(method, pair),
        "calibration": described(calibration) if calibration is not None else None,
        **({"simulated": True} if is_simulated(method) else {}),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a decode does."""
    from importlib.metadata import version

    return {"python": platform.python_version(), "bastion": __version__, **{name: version(name) for name in ("torch", "transformers", "numpy")}}
