"""Calibrating from the page: two thoroughnesses, progress, remaining time, a stop."""

from __future__ import annotations

import streamlit as st

from bastion.errors import UserError
from bastion.jobs import FINAL, JobView, PairChoice, manager
from bastion.jobs.calibrating import JOB_ID, CalibrationRequest, start_calibration
from pages.parts.fetch import model_at_hand
from pages.parts.latency_choice import CHOICE, CONTEXTS
from pages.parts.pair import chosen_pair
from pages.parts.text import plain
from pages.parts.work_progress import work_progress

HEIGHT = 96   # pixels: the same with the buttons and with the progress, so that nothing below moves
POLL_SECONDS = 0.5
QUICK, FULL = "quick", "full"
SIZE = "latency-size"
WATCHED, MADE, PROBLEM = "latency-watched", "latency-made", "latency-problem"


def take_finished() -> None:
    """Before any widget is drawn: show the calibration that this session has waited for."""
    if made := st.session_state.pop(MADE, None):
        st.session_state[CHOICE] = made
        st.session_state.pop(CONTEXTS, None)


def start(request: CalibrationRequest) -> None:
    st.session_state[WATCHED], st.session_state[PROBLEM] = True, ""
    try:
        start_calibration(manager(), request)
    except UserError as error:
        st.session_state[PROBLEM] = str(error)


def calibrate_here(choice: PairChoice) -> None:
    """The buttons, or how far the calibration is that runs."""
    if not model_at_hand(choice):
        return
    view = manager().view(JOB_ID)
    _area(choice, polling=view is not None and view.state not in FINAL)


def _area(choice: PairChoice, polling: bool) -> None:
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
                _controls(view, choice)

    area()


def _controls(view: JobView | None, choice: PairChoice) -> None:
    row = st.container(horizontal=True, vertical_alignment="center")
    row.segmented_control("Thoroughness", [QUICK, FULL], default=QUICK, required=True, key=SIZE,
                          persist_state="session", label_visibility="collapsed")
    row.button("Calibrate", type="primary", on_click=_start, key="latency-start")
    st.caption(_ending(view) + f"Times {plain(choice.label, 60) or 'the pair named in the sidebar'}: quick takes under a minute, full about three. Decodes on this "
               "device wait meanwhile; leave the machine otherwise idle, for times that mean something.")


def _start() -> None:
    start(CalibrationRequest(chosen_pair(), st.session_state[SIZE] == QUICK))


def _ending(view: JobView | None) -> str:
    """Why none could be started, or how the last one ended, when that was no calibration and this session saw it."""
    if problem := st.session_state.get(PROBLEM):
        return plain(problem) + " "
    if view is None or not st.session_state.get(WATCHED):
        return ""
    return {"cancelled": "Stopped; nothing stored has changed. ", "failed": plain(view.error) + " "}.get(view.state, "")
