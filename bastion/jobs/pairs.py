"""The pairs that can be chosen by name, and what one takes of memory, said before anything is loaded. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.errors import UserError
from bastion.jobs.engine_import import import_engine
from bastion.jobs.request import PairChoice

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class PairOffer:
    """A preset: its name, and what it is in a line."""

    name: str
    summary: str


def offered_pairs() -> tuple[PairOffer, ...]:
    """The presets, the default one first."""
    from bastion.models.presets import PRESETS

    return tuple(PairOffer(preset.name, preset.summary) for preset in PRESETS.values())


def memory_words(choice: PairChoice, device: str) -> str:
    """`needs about 19.2 GB in bfloat16 (...)` on this device; empty for a pair that is small, or whose sizes only the hub knows."""
    import_engine()
    from bastion.models.memory import BYTES, said_before_loading
    from bastion.models.number_type import likely_type

    source = choice.preset or choice.target or ""
    # what is not known yet is reckoned as the larger
    dtype = choice.dtype if choice.dtype in BYTES else likely_type(source, device) or "float32"
    try:
        return said_before_loading(source, choice.drafter, dtype, choice.small_lm, device.startswith("cpu"))
    except UserError:   # loading says it
        return ""
