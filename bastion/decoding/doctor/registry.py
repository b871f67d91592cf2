"""The tests: a new one is a function that gives its variants and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bastion.decoding.doctor import inputs, numbers, outputs, templates
from bastion.decoding.doctor.bench import Bench
from bastion.decoding.doctor.drafting import Variant
from bastion.errors import UserError
from bastion.models.pair import Pair


@dataclass(frozen=True, slots=True)
class Check:
    """name: the fault it looks for. variants: the ways to undo it, each measured. absent: why there may be none."""

    name: str
    title: str
    variants: Callable[[Bench], list[Variant]]
    trusted: bool = True
    """Whether a gain in likelihood without one in tau counts."""
    absent: str = "This pair has nothing of the kind."


def _of_pair(variants: Callable[[Pair], list[Variant]]) -> Callable[[Bench], list[Variant]]:
    return lambda bench: variants(bench.pair)


CHECKS: tuple[Check, ...] = (
    Check("anchor", "anchor embedding at slot 0", _of_pair(inputs.anchor)),
    Check("layers", "feature layers", _of_pair(outputs.layers)),
    Check("context", "where the features end", _of_pair(inputs.context_end)),
    Check("template", "chat template and thinking mode", templates.template),
    Check("positions", "positions", _of_pair(inputs.positions)),
    Check("mask", "mask token", _of_pair(inputs.mask_id)),
    Check("order", "attention within the block", _of_pair(inputs.order)),
    Check("vocabulary", "vocabulary map", _of_pair(outputs.vocabulary)),
    Check("target weights", "quantised or altered target", numbers.target_weights),
    Check("drafter numbers", "number type of the drafter", numbers.drafter_type),
    Check("temperatures", "depth temperatures", _of_pair(outputs.temperatures), trusted=False,
         absent="The drafter has no depth temperatures."),
)


def checks_named(names: Iterable[str]) -> tuple[Check, ...]:
    """The tests of these names, in the registry's order; all of them for no names. Raises UserError."""
    wanted = {name.strip() for name in names if name.strip()}
    if unknown := sorted(wanted - {check.name for check in CHECKS}):
        raise UserError(f"There is no test named {unknown[0]}; the doctor has {', '.join(check.name for check in CHECKS)}.")
    return tuple(check for check in CHECKS if not wanted or check.name in wanted)
