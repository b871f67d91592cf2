"""The live area: one status line, and the tree component that text, tree and charts live in."""

from __future__ import annotations

import streamlit as st

from bastion.errors import UserError
from bastion.figures.tree_component import CSS, HTML, JS, NAME
from bastion.figures.tree_payload import run_payload
from bastion.jobs import manager
from bastion.jobs.shown import Shown, show
from pages.parts.payloads import payloads
from pages.parts.text import plain

POLL_SECONDS = 0.25
POLL_SECONDS_BESIDE = 1.0
"""Once a CPU's first step is on show: the browser that draws may well share the CPU, and at four drawings a second the
decode loses a tenth and more of its speed."""
STATUS_HEIGHT = 48

_component = st.components.v2.component(NAME, html=HTML, css=CSS, js=JS)


def live_area(run_id: str, first: Shown) -> None:
    """Draw the run and, while it is live, look again every quarter of a second; less often once a CPU's first step is on show."""
    linked = st.query_params.get("step", "")
    select = int(linked) if linked.isdecimal() and len(linked) < 9 else None

    @st.fragment(run_every=poll_seconds(first))
    def area() -> None:
        try:
            shown = show(run_id)
        except UserError as error:   # deleted while it was on show
            st.error(plain(str(error)))
            return
        _status(shown)
        if shown.steps or not shown.final:
            _tree(shown, select)
        if _stage(shown) != _stage(first):
            st.rerun()   # buttons and sidebar change with the stage, and polling stops when all is over

    area()


def poll_seconds(shown: Shown) -> float | None:
    """Seconds between two looks at a run; None when nothing more can come."""
    if not shown.live:
        return None
    return POLL_SECONDS_BESIDE if shown.steps and manager().device(shown.id) == "cpu" else POLL_SECONDS


def _stage(shown: Shown) -> tuple[bool, bool, bool]:
    return shown.live, shown.final, bool(shown.steps)


def _status(shown: Shown) -> None:
    """One line of words, and a bar while the share done is known, in a place that keeps its height."""
    if shown.error:
        st.error(plain(shown.error))
    with st.container(height=STATUS_HEIGHT, border=False, key="status", gap=None):
        if shown.share is not None:
            st.progress(shown.share, text=plain(shown.words))
        else:
            st.caption(plain(shown.words))


def _tree(shown: Shown, select: int | None) -> None:
    key = f"tree-{shown.id}"
    steps = payloads(shown.id, shown.steps, shown.pieces, shown.vocabulary, shown.drafter_depth)
    known = (st.session_state.get(key) or {}).get("have") or {}
    have = known.get("have", 0) if known.get("run") == shown.id else 0
    start = have if isinstance(have, int) and 0 <= have <= len(steps) else 0
    result = _component(
        key=key, on_step_change=lambda: None, on_have_change=lambda: None,
        data=run_payload(shown.id, steps[start:], start=start, live=shown.live and not shown.final, select=select,
                         method=str(shown.info.get("method") or ""), drafter_depth=shown.drafter_depth, yardstick=shown.yardstick,
                         note=shown.words))
    moved = result.step or {}
    if moved.get("run") == shown.id and str(moved.get("step")) != st.query_params.get("step"):
        st.query_params["step"] = str(moved["step"])
        st.session_state["explored"] = st.query_params.to_dict()
        st.session_state.setdefault("looked-at", {})[shown.id] = moved["step"]
