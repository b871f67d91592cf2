"""The live area: one status line, and the tree component that text, tree and charts live in."""

from __future__ import annotations

import streamlit as st

from bastion.figures.tree_component import CSS, HTML, JS, NAME
from bastion.figures.tree_payload import run_payload
from bastion.jobs.shown import Shown, show
from pages.parts.payloads import payloads

POLL_SECONDS = 0.25

_component = st.components.v2.component(NAME, html=HTML, css=CSS, js=JS)


def live_area(run_id: str, first: Shown) -> None:
    """Draw the run and, while it is live, look again every quarter of a second."""
    linked = st.query_params.get("step", "")
    select = int(linked) if linked.isdecimal() and len(linked) < 9 else None

    @st.fragment(run_every=POLL_SECONDS if first.live else None)
    def area() -> None:
        shown = show(run_id)
        if shown is None:
            st.error("This run is no longer on the disk: it was deleted while it was on show.")
            return
        _status(shown)
        _tree(shown, select)
        if (shown.live, shown.final) != (first.live, first.final):
            st.rerun()   # the buttons above change with the state, and polling stops when it is over

    area()


def _status(shown: Shown) -> None:
    with st.container(height=44, border=False, key="status", gap=None):
        if shown.error:
            st.error(shown.error)
        elif shown.share is not None:
            st.progress(shown.share, text=shown.words)
        else:
            st.caption(shown.words)


def _tree(shown: Shown, select: int | None) -> None:
    key = f"tree-{shown.id}"
    steps = payloads(shown.id, shown.steps, shown.vocabulary, shown.drafter_depth)
    known = (st.session_state.get(key) or {}).get("have") or {}
    have = known.get("have", 0) if known.get("run") == shown.id else 0
    start = have if isinstance(have, int) and 0 <= have <= len(steps) else 0
    result = _component(
        key=key, on_step_change=lambda: None, on_have_change=lambda: None,
        data=run_payload(shown.id, steps[start:], start=start, live=shown.live and not shown.final, select=select,
                         method=shown.method, drafter_depth=shown.drafter_depth, yardstick=shown.yardstick,
                         note=shown.words))
    moved = result.step or {}
    if moved.get("run") == shown.id and str(moved.get("step")) != st.query_params.get("step"):
        st.query_params["step"] = str(moved["step"])
