"""Runs: everything that was saved. Find it, open it, compare it, name it, share it, delete it."""

from __future__ import annotations

import streamlit as st

from bastion.figures.numbers import count
from bastion.jobs import manager
from bastion.records.search import SINGLE, wanted_runs
from bastion.records.trash import KEPT_DAYS
from pages.parts.run_actions import actions, deleted_line, trash_area
from pages.parts.run_filters import contents, filters
from pages.parts.run_import import UPLOAD, import_area
from pages.parts.run_table import run_table
from pages.parts.text import plain

store = manager().store
if not any(str(key).startswith(UPLOAD) for key in st.session_state):   # a widget of this page is forgotten when it is left
    for passing in ("runs-deleted", "runs-imported"):
        st.session_state.pop(passing, None)
    store.empty_trash(KEPT_DAYS)
runs, passed_over = store.scan()
trashed = store.trashed()

st.title("Runs", anchor=False)
st.caption(contents(runs, trashed))
if runs:
    wanted = filters(runs)
    shown = wanted_runs(runs, wanted)
    above = st.container()
    selected = run_table(shown, grouped=wanted.kind != SINGLE) if shown else []
    if not shown:
        st.info("No run matches: clear the search or a filter, or show all.")
    with above:
        actions(store, selected, len(shown))
else:
    deleted_line(store, st.container(horizontal=True, vertical_alignment="center"))
    st.subheader("No runs yet", anchor=False)
    st.markdown("A prompt decoded on Explore is kept here, and so is every run of a race or a benchmark. "
                "A run recorded elsewhere can be imported below.")

import_area(store)
trash_area(store, trashed)
if passed_over:
    with st.expander(f"{count(len(passed_over))} folder{'s' * (len(passed_over) != 1)} passed over"):
        for one in passed_over:
            st.caption(f"{plain(one.name)}: {plain(one.reason)}")
