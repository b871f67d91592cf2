"""Finding runs: the search line, the choices, and what there is in all."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from bastion.figures.numbers import count, storage
from bastion.records import RunSummary
from bastion.records.search import ALL, BENCHMARK, RACE, SINGLE, RunFilter, kinds, method_name
from bastion.records.trash import KEPT_DAYS, Trashed
from pages.parts.run_table import one_line

SHOW = {"Single runs": SINGLE, "Of races": RACE, "Of benchmarks": BENCHMARK, "All": ALL}   # the words stand in the address

FILTERS = {
    "methods": ("Method", method_name),
    "pairs": ("Pair", lambda run: run.pair),
    "devices": ("Device", lambda run: run.device),
    "prompt_sets": ("Prompt set", lambda run: run.prompt_set),
}


def filters(runs: Sequence[RunSummary]) -> RunFilter:
    """Draw them; all are in the address and stay over a look at another page."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    words = row.text_input("Search", key="runs-search", bind="query-params", placeholder="Title, note, prompt set", width=230)
    show = row.segmented_control("Show", list(SHOW), key="runs-show", bind="query-params", default="Single runs", required=True)
    options = {name: {one_line(value(run)): value(run) for run in runs if value(run)} for name, (_, value) in FILTERS.items()}
    keys = {name: f"runs-{label.lower().replace(' ', '-')}" for name, (label, _) in FILTERS.items()}
    for name, key in keys.items():   # the last run with a value may have been deleted since
        if not set(st.session_state.get(key, ())) <= options[name].keys():
            st.session_state[key] = [one for one in st.session_state[key] if one in options[name]]
    active = sum(bool(st.session_state.get(key)) for key in keys.values())
    chosen = {}
    with row.container(width="content").popover(f"Filters: {active}" if active else "Filters", key="runs-filters"):
        for name, (label, _) in FILTERS.items():
            picked = st.multiselect(label, sorted(options[name]), key=keys[name], bind="query-params", width=320, placeholder="Any",
                                    disabled=not options[name])
            chosen[name] = [options[name][one] for one in picked]
    return RunFilter(words=words, kind=SHOW[show or "Single runs"], **chosen)


def contents(runs: Sequence[RunSummary], trashed: Sequence[Trashed]) -> str:
    """How many runs there are, how many of them belong to races and benchmarks, and what they take on disk."""
    of = kinds(runs)
    groups = [f"{count(of[kind])} {name}" for kind, name in ((SINGLE, "single"), (RACE, "of races"), (BENCHMARK, "of benchmarks")) if of[kind]]
    words = f"{count(len(runs))} saved run{'s' * (len(runs) != 1)}"
    words += f" ({', '.join(groups)})" if len(groups) > 1 else ""
    words += f", {storage(sum(run.bytes for run in runs))} on disk."
    if trashed:
        words += f" Deleted and kept {KEPT_DAYS} days: {count(len(trashed))}, {storage(sum(one.bytes for one in trashed))}."
    return words
