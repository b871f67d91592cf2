"""Runs: everything that was saved. Find it, open it, compare it, name it, share it, delete it."""

from __future__ import annotations

import streamlit as st

from bastion.figures.numbers import count, storage
from bastion.jobs import manager
from bastion.records.search import ALL, KINDS, SINGLE, RunFilter, kinds, method_name, wanted_runs
from bastion.records.trash import KEPT_DAYS
from pages.parts.run_actions import actions, deleted_line, trash_area
from pages.parts.run_import import UPLOAD, import_area
from pages.parts.run_table import one_line, run_table
from pages.parts.text import plain

KIND_NAMES = {SINGLE: "Single runs", "race": "Of races", "benchmark": "Of benchmarks", ALL: "All"}

FILTERS = {"methods": ("Method", method_name), "pairs": ("Pair", lambda run: run.pair), "devices": ("Device", lambda run: run.device),
           "prompt_sets": ("Prompt set", lambda run: run.prompt_set)}

store = manager().store
if not any(str(key).startswith(UPLOAD) for key in st.session_state):   # a widget of this page is forgotten when it is left
    for passing in ("runs-deleted", "runs-imported"):
        st.session_state.pop(passing, None)
    store.empty_trash(KEPT_DAYS)
runs, passed_over = store.scan()
trashed = store.trashed()

st.title("Runs", anchor=False)
total = f"{count(len(runs))} saved run{'s' * (len(runs) != 1)}, {storage(sum(run.bytes for run in runs))} on disk."
st.caption(total + (f" Deleted and kept {KEPT_DAYS} days: {count(len(trashed))}, {storage(sum(one.bytes for one in trashed))}."
                    if trashed else ""))
deleted_line(store)


def filters() -> RunFilter:
    """The search line and the choices; all are in the address."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    words = row.text_input("Search", key="runs-search", bind="query-params", placeholder="Title, note, prompt set", width=230)
    counts = kinds(runs)
    names = {kind: KIND_NAMES[kind] + (f" {count(counts[kind])}" if kind in KINDS else "") for kind in (*KINDS, ALL)}
    kind = row.segmented_control("Show", list(names), key="runs-show", bind="query-params", default=SINGLE, required=True,
                                 format_func=names.get)
    chosen, place = {}, row.container(width="content")
    for name, (label, value) in FILTERS.items():
        options = sorted({value(run) for run in runs} - {""})
        key = f"runs-{label.lower().replace(' ', '-')}"
        if not set(st.session_state.get(key, ())) <= set(options):   # the last such run was deleted
            st.session_state[key] = [one for one in st.session_state[key] if one in options]
        chosen[name] = (key, label, options)
    active = sum(bool(st.session_state.get(key)) for key, _, _ in chosen.values())
    with place.popover(f"Filters: {active}" if active else "Filters", key="runs-filters"):
        for name, (key, label, options) in chosen.items():
            chosen[name] = st.multiselect(label, options, key=key, bind="query-params", format_func=one_line, width=320,
                                          placeholder="Any", disabled=not options)
    return RunFilter(words=words, kind=kind or SINGLE, **chosen)


if runs:
    wanted = filters()
    shown = wanted_runs(runs, wanted)
    place = st.container()
    if shown:
        selected = run_table(shown, grouped=wanted.kind != SINGLE)
    else:
        selected = []
        st.info("No run matches: clear the search or a filter, or show all.")
    with place:
        actions(store, selected, len(shown))
else:
    st.subheader("No runs yet", anchor=False)
    st.markdown("A prompt decoded on Explore is kept here, and so is every run of a race or a benchmark. "
                "A run recorded elsewhere can be imported below.")

import_area(store)
trash_area(store, trashed)
if passed_over:
    with st.expander(f"{count(len(passed_over))} folder{'s' * (len(passed_over) != 1)} passed over"):
        for one in passed_over:
            st.caption(f"{plain(one.name)}: {plain(one.reason)}")
