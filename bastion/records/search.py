"""Which runs of a list are wanted: by words, by what they were made with, and by whether they belong to a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bastion.records.run import RunSummary

SINGLE, RACE, BENCHMARK, ALL = "single", "race", "benchmark", "all"
KINDS = (SINGLE, RACE, BENCHMARK)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What must hold of a run; an empty choice asks nothing. `kind` is one of `KINDS`, or `ALL`."""

    words: str = ""                    # each must occur in title, note, prompt set or id, in any case
    kind: str = ALL
    methods: Sequence[str] = ()        # names, without their settings
    pairs: Sequence[str] = ()
    devices: Sequence[str] = ()
    prompt_sets: Sequence[str] = ()


def kind_of(run: RunSummary) -> str:
    """`RACE` or `BENCHMARK` for a run that belongs to one, else `SINGLE`."""
    return run.group if run.group in (RACE, BENCHMARK) else SINGLE


def method_name(run: RunSummary) -> str:
    """The method without its settings: `ddtree` of `ddtree:16`."""
    return run.method.partition(":")[0]


def wanted_runs(runs: Iterable[RunSummary], wanted: RunFilter) -> list[RunSummary]:
    """Those for which the filter holds, in the order given."""
    words = wanted.words.casefold().split()
    choices = ((wanted.methods, method_name), (wanted.pairs, lambda run: run.pair),
               (wanted.devices, lambda run: run.device), (wanted.prompt_sets, lambda run: run.prompt_set))
    return [run for run in runs
            if wanted.kind in (ALL, kind_of(run))
            and all(not chosen or value(run) in chosen for chosen, value in choices)
            and (not words or all(word in _haystack(run) for word in words))]


def kinds(runs: Iterable[RunSummary]) -> Counter[str]:
    """How many runs there are of each kind."""
    return Counter(map(kind_of, runs))


def _haystack(run: RunSummary) -> str:
    return "\n".join((run.title, run.note, run.prompt_set, run.id)).casefold()
