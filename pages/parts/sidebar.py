"""The sidebar: pair and device, calibration, queue, recent runs, download."""

from __future__ import annotations

from datetime import datetime, timezone

import streamlit as st

from bastion.jobs import manager
from bastion.jobs.shown import Shown, recent

LISTED = 8


def sidebar(shown: Shown | None) -> None:
    with st.sidebar:
        if shown is not None:
            _run(shown)
        _queue()
        _recent(shown)


def _run(shown: Shown) -> None:
    st.markdown("**This run**")
    rows = [("pair", shown.pair), ("device", " · ".join(filter(None, (shown.device, shown.dtype)))),
            ("method", shown.method), ("calibration", shown.calibration_words)]
    for name, value in rows:
        if value:
            st.markdown(f":gray[{name}]  {value}")
    if shown.saved:
        st.download_button("Download the run (zip)", data=lambda: manager().store.zip_bytes(shown.id),
                           file_name=f"{shown.id}.zip", mime="application/zip", on_click="ignore", width="stretch")


def _queue() -> None:
    waiting = manager().waiting()
    st.markdown(f":gray[queue]  {'idle' if not waiting else f'{waiting} at work or waiting'}")


def _recent(shown: Shown | None) -> None:
    runs = recent()
    if not runs:
        return
    st.markdown("**Recent runs**")
    for run in runs[:LISTED]:
        st.page_link("pages/explore.py", label=run.label, query_params={"run": run.id},
                     disabled=shown is not None and run.id == shown.id)
    if len(runs) > LISTED:
        st.selectbox("Older runs", [None, *[run.id for run in runs[LISTED:]]], key="older", on_change=_open_older,
                     format_func=lambda i: "Older runs" if i is None else next(r.label for r in runs if r.id == i),
                     label_visibility="collapsed")


def _open_older() -> None:
    if st.session_state.get("older"):
        st.query_params.from_dict({"run": st.session_state["older"]})
        st.session_state["older"] = None


def age(iso: str) -> str:
    """How long ago an ISO time was, in the largest unit that is at least one."""
    try:
        made = datetime.fromisoformat(iso)
    except ValueError:
        return ""
    made = made if made.tzinfo else made.replace(tzinfo=timezone.utc)
    seconds = max((datetime.now(timezone.utc) - made).total_seconds(), 0)
    for unit, size in (("day", 86_400), ("hour", 3_600), ("min", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 and unit != 'min' else ''} ago"
    return "just now"
