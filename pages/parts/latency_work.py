"""Calibrating from the page: two thoroughnesses, progress, remaining time, a stop."""

from __future__ import annotations

import streamlit as st

from bastion.jobs import FINAL, JobView, PairChoice, manager
from bastion.jobs.calibrating import JOB_ID, CalibrationRequest, start_calibration
from pages.parts.fetch import model_at_hand
from pages.parts.latency_choice import CHOICE, CONTEXTS
from pages.parts.text import plain
from pages.parts.work_progress import work_progress

HEIGHT = 96   # pixels: the same with the buttons and with the progress, so that nothing below moves
POLL_SECONDS = 0.5
QUICK, FULL = "quick", "full"
DTYPES = {"auto": "as Explore decodes", "float32": "float32", "bfloat16": "bfloat16"}
SIZE, DTYPE = "latency-size", "latency-dtype"
WATCHED, MADE = "latency-watched", "latency-made"


def take_finished() -> None:
    """Before any widget is drawn: show the calibration that this session has waited for."""
    if made := st.session_state.pop(MADE, None):
        st.session_state[CHOICE] = made
        st.session_state.pop(CONTEXTS, None)


def start(request: CalibrationRequest) -> None:
    st.session_state[WATCHED] = True
    start_calibration(manager(), request)


def calibrate_here() -> None:
    """The buttons, or how far the calibration is that runs."""
    if not model_at_hand():
        return
    view = manager().view(JOB_ID)
    _area(polling=view is not None and view.state not in FINAL)


def _area(polling: bool) -> None:
    @st.fragment(run_every=POLL_SECONDS if polling else None)
    def area() -> None:
        view = manager().view(JOB_ID)
        running = view is not None and view.state not in FINAL
        if running != polling:
            if view is not None and view.final and st.session_state.get(WATCHED):
                st.session_state[MADE] = view.info.get("made")
            st.rerun()
        with st.container(height=HEIGHT, border=False, key="latency-work", gap="small"):
            if running:
                st.session_state[WATCHED] = True
                work_progress(view, "latency-stop", "Decodes on this device wait until it is done. "
                                                    "What was stored before stays until then.")
            else:
                _controls(view)

    area()


def _controls(view: JobView | None) -> None:
    row = st.container(horizontal=True, vertical_alignment="center")
    row.segmented_control("Thoroughness", [QUICK, FULL], default=QUICK, required=True, key=SIZE,
                          persist_state="session", label_visibility="collapsed")
    row.selectbox("Number type", list(DTYPES), format_func=DTYPES.get, key=DTYPE, persist_state="session",
                  label_visibility="collapsed", width=190)
    row.button("Calibrate", type="primary", on_click=_start, key="latency-start")
    st.caption(_ending(view) + "Times the default pair: quick takes under a minute, full about three. Decodes on this "
               "device wait meanwhile; leave the machine otherwise idle, for times that mean something.")


def _start() -> None:
    start(CalibrationRequest(PairChoice(dtype=st.session_state[DTYPE]), st.session_state[SIZE] == QUICK))


def _ending(view: JobView | None) -> str:
    """How the last one ended, when that was no calibration and this session saw it."""
    if view is None or not st.session_state.get(WATCHED):
        return ""
    return {"cancelled": "Stopped; nothing stored has changed. ", "failed": plain(view.error) + " "}.get(view.state, "")
