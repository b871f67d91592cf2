"""What can be done with the selected runs, and how a deletion is undone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, UTC
from pathlib import Path
from typing import Any

import streamlit as st

from bastion.errors import UserError
from bastion.figures.numbers import count, storage
from bastion.records import RunStore, RunSummary
from bastion.records.labels import LONGEST_NOTE, LONGEST_TITLE
from bastion.records.trash import KEPT_DAYS, Trashed
from pages.parts.run_html import html_button
from pages.parts.sidebar import age
from pages.parts.text import plain

PAGES = Path(__file__).resolve().parents[1]


def actions(store: RunStore, selected: Sequence[RunSummary], shown: int) -> None:
    """The row of buttons above the table; those that do not fit the selection are dimmed."""
    ids = [run.id for run in selected]
    one = selected[0] if len(selected) == 1 else None
    row = st.container(horizontal=True, vertical_alignment="center", gap="small", key="runs-actions")
    if row.button("Open in Explore", disabled=one is None, type="primary"):
        st.switch_page("pages/explore.py", query_params={"run": one.id})
    if (PAGES / "compare.py").is_file() and row.button("Compare", disabled=len(ids) < 2, help="Two runs or more, side by side"):
        st.switch_page("pages/compare.py", query_params={"race-runs": ids})
    if (PAGES / "surrogate.py").is_file() and row.button("Surrogate", disabled=not ids, help="How well the drafter judged its trees"):
        st.switch_page("pages/surrogate.py", query_params={"surrogate-runs": ",".join(ids)})
    with row.popover("Title and note", disabled=one is None):
        if one is not None:
            _name(store, one)
    several = len(ids) > 1
    row.download_button("Export", data=lambda: store.export_zips(ids), disabled=not ids, on_click="ignore", mime="application/zip",
                        file_name=f"bastion-{len(ids)}-runs.zip" if several else f"bastion-run-{''.join(ids)}.zip",
                        help="A zip that any BASTION Studio imports; of several runs one zip that holds them all")
    html_button(row, store, one.id if one else None)
    row.button("Delete", disabled=not ids, on_click=_delete, args=(store, ids), help="Can be undone")
    deleted = deleted_line(store, row)
    if ids or not deleted:
        row.caption(f"{count(len(ids))} of {count(shown)} selected" if ids else f"{count(shown)} shown; select rows on their left edge")
    if problem := st.session_state.pop("runs-problem", ""):
        st.error(plain(problem))


def deleted_line(store: RunStore, row: Any) -> bool:
    """What was just deleted and its undo, in `row`, until that is used or the page is left; whether there is any."""
    gone = {one.id for one in store.trashed()} if st.session_state.get("runs-deleted") else ()
    ids = [run_id for run_id in st.session_state.get("runs-deleted", ()) if run_id in gone]
    if ids:
        row.caption("1 run is deleted." if len(ids) == 1 else f"{count(len(ids))} runs are deleted.", width="content")
        row.button("Undo", on_click=_restore, args=(store, ids), key="runs-undo-button")
    return bool(ids)


def trash_area(store: RunStore, trashed: Sequence[Trashed]) -> None:
    """Deleted runs that are still here, each with its way back, and a way to be rid of them."""
    if not trashed:
        return
    with st.expander(f"Deleted runs: {count(len(trashed))}"):
        st.caption(f"They can be brought back for {KEPT_DAYS} days; older ones go for good when a run is deleted or this page is opened.")
        for one in trashed[:50]:
            row = st.container(horizontal=True, vertical_alignment="center")
            title = plain(one.summary.title, 60) if one.summary else ""
            when = age(datetime.fromtimestamp(one.deleted, UTC).isoformat())
            row.markdown(f"{title or 'untitled'}, deleted {when}, {storage(one.bytes)}", width="stretch")
            row.button("Restore", key=f"runs-restore-{one.id}", on_click=_restore, args=(store, [one.id]))
        st.button(f"Remove all for good ({storage(sum(one.bytes for one in trashed))})", key="runs-empty", on_click=store.empty_trash)


def _name(store: RunStore, run: RunSummary) -> None:
    with st.form(f"runs-name-{run.id}", border=False):
        title = st.text_input("Title", value=run.title, max_chars=LONGEST_TITLE, key=f"runs-title-{run.id}")
        note = st.text_area("Note", value=run.note, max_chars=LONGEST_NOTE, key=f"runs-note-{run.id}", width=360)
        if not st.form_submit_button("Save"):
            return
    try:
        if title != run.title:
            store.rename(run.id, title)
        store.note(run.id, note)
    except UserError as error:
        st.error(plain(str(error)))
    else:
        st.toast("Title and note are saved")
        st.rerun()


def _delete(store: RunStore, ids: Sequence[str]) -> None:
    deleted = []
    for run_id in ids:
        try:
            store.trash(run_id)
            deleted.append(run_id)
        except UserError as error:
            st.session_state["runs-problem"] = str(error)
    if deleted:
        st.session_state["runs-deleted"] = deleted


def _restore(store: RunStore, ids: Sequence[str]) -> None:
    for run_id in ids:
        try:
            store.restore(run_id)
        except UserError as error:
            st.session_state["runs-problem"] = str(error)
    st.session_state["runs-deleted"] = [one for one in st.session_state.get("runs-deleted", ()) if one not in ids]
    st.session_state["runs-chosen"] = list(ids)
