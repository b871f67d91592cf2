"""Adding runs that were exported elsewhere."""

from __future__ import annotations

import streamlit as st

from bastion.errors import UserError
from bastion.figures.numbers import count
from bastion.records import RunStore
from pages.parts.run_table import CHOSEN
from pages.parts.text import plain

UPLOAD = "runs-upload-"   # keys of the uploader, a new one after each import


def import_area(store: RunStore) -> None:
    """The upload, and what became of the last one."""
    state = st.session_state
    with st.expander("Import runs", expanded=bool(state.get("runs-imported"))):
        st.caption("Zips that a BASTION Studio exported. Each is checked whole before anything is kept, and nothing in it is executed.")
        files = st.file_uploader("Import runs", type="zip", accept_multiple_files=True, label_visibility="collapsed",
                                 key=f"{UPLOAD}{state.get('runs-uploads', 0)}")
        if files:
            state["runs-imported"] = _take(store, files)
            state["runs-uploads"] = state.get("runs-uploads", 0) + 1   # another uploader, with nothing in it
            st.rerun()
        added, refused = state.get("runs-imported") or ([], [])
        if added:
            st.success("1 run was added." if len(added) == 1 else f"{count(len(added))} runs were added.")
        for name, reason in refused:
            st.error(f"{plain(name, 60)}: {plain(reason)}")


def _take(store: RunStore, files: list) -> tuple[list[str], list[tuple[str, str]]]:
    added, refused = [], []
    for file in files:
        try:
            added += store.import_zips(file)
        except UserError as error:
            refused.append((file.name, str(error)))
    if added:
        st.session_state[CHOSEN] = added
    return added, refused
