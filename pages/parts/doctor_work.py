"""Starting the doctor from the page: progress, remaining time, a stop."""

from __future__ import annotations

import streamlit as st

from bastion.errors import UserError
from bastion.jobs import FINAL, JobView, PairChoice, manager
from bastion.jobs.doctoring import JOB_ID, DoctorRequest, start_doctor
from pages.parts.fetch import model_at_hand
from pages.parts.pair import chosen_pair
from pages.parts.text import plain
from pages.parts.work_progress import work_progress

HEIGHT = 96   # pixels: the same with the button and with the progress, so that nothing below moves
POLL_SECONDS = 0.5
PROBLEM = "doctor-problem"


def examine_here(choice: PairChoice) -> None:
    """The button, or how far the examination is that runs."""
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
            st.rerun()
        with st.container(height=HEIGHT, border=False, key="doctor-work", gap="small"):
            if running:
                work_progress(view, "doctor-stop", "Decodes on this device wait until it is done.")
            else:
                _controls(view, choice)

    area()


def _controls(view: JobView | None, choice: PairChoice) -> None:
    st.button("Examine", type="primary", key="doctor-start", on_click=_start)
    ending = {"cancelled": "Stopped. ", "failed": plain(view.error) + " "}.get(view.state, "") if view is not None else ""
    if problem := st.session_state.get(PROBLEM):
        ending = plain(problem) + " "
    st.caption(ending + f"Examines {plain(choice.label, 60) or 'the pair named in the sidebar'}; the default pair takes about two minutes on two cores. "
               "From a shell: `python -m bastion doctor`.")


def _start() -> None:
    st.session_state[PROBLEM] = ""
    try:
        start_doctor(manager(), DoctorRequest(chosen_pair()))
    except UserError as error:
        st.session_state[PROBLEM] = str(error)
