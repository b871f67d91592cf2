"""What can be asked for on this machine: whether models can run at all, and the methods that are built."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from bastion.jobs.engine_import import import_engine

NEEDED = ("torch", "transformers")
SAMPLES = {None: None, "N": "16", "a,b,c": "4,2,2,1", "R": "0.8"}   # an argument of each form


@dataclass(frozen=True, slots=True)
class MethodOffer:
    """One built method of the registry. `argument` is how the part behind its colon is written, as N."""

    name: str
    summary: str
    argument: str | None
    adaptive: bool   # chooses its tree size within bounds
    rules: tuple[str, ...] = ("walk",)   # the acceptance rules that fit, its own first

    @property
    def label(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name


def engine_missing() -> str:
    """One sentence that says what to install before models can be run; empty when all is there."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    if not absent:
        return ""
    return (f"Saved runs can be viewed here; to decode, install {' and '.join(absent)} "
            "(`pip install -r requirements.txt`) and start again.")


@cache
def offered_methods() -> tuple[MethodOffer, ...]:
    """The methods that are built, in registry order. Imports torch at the first call."""
    import_engine()
    from bastion.decoding.methods import METHODS
    from bastion.decoding.rules import fitting_rules
    from bastion.jobs.engine import is_adaptive
    return tuple(MethodOffer(name, entry.summary, entry.argument,
                             entry.argument is None and is_adaptive(entry.build(None)), fitting_rules(entry.build(SAMPLES[entry.argument])))
                 for name, entry in METHODS.items() if entry.build is not None)


def registry_name(method: str) -> str:
    """A method as the registry writes it. Raises UserError for one that is not built. Imports torch."""
    import_engine()
    from bastion.decoding.methods import resolve_method
    return resolve_method(method).name
