"""Starting the doctor from the page: how much to ask, which tests, progress, remaining time, a stop."""

from __future__ import annotations

import streamlit as st

from bastion.errors import UserError
from bastion.figures import doctor_words as words
from bastion.jobs import FINAL, JobView, PairChoice, manager
from bastion.jobs.doctoring import JOB_ID, DoctorRequest, start_doctor
from pages.parts.fetch import model_at_hand
from pages.parts.pair import chosen_pair
from pages.parts.text import plain
from pages.parts.work_progress import work_progress

HEIGHT = 96   # pixels: the same with the button and with the progress, so that nothing below moves
POLL_SECONDS = 0.5
PROBLEM = "doctor-problem"
SIZE, TESTED = "doctor-size", "doctor-tests"   # also their names in the address
QUESTIONS = {"quick": 3, "full": 10}
EXPECTED = {"quick": "under a minute", "full": "about two minutes"}


def examine_here(choice: PairChoice) -> None:
    """The button, or how far the examination is that runs."""
    if not model_at_hand(choice):
        return
    view = manager().view(JOB_ID)
    running = view is not None and view.state not in FINAL
    row = st.container(horizontal=True, vertical_alignment="bottom")
    row.segmented_control("Questions", list(QUESTIONS), default="full", required=True, key=SIZE, bind="query-params", disabled=running,
                          help=f"Quick: the target answers {QUESTIONS['quick']} questions; full: {QUESTIONS['full']}. Slight faults show on all of "
                               "them only.")
    row.multiselect("Tests", list(words.TESTS), key=TESTED, bind="query-params", placeholder="all of them", disabled=running,
                    width=520, help=" · ".join(f"{name}: {title}" for name, title in words.TESTS.items()))
    _area(choice, polling=running)


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
    st.caption(ending + f"Examines {plain(choice.label, 60) or 'the pair named in the sidebar'}; all tests of the default pair take "
               f"{EXPECTED[st.session_state[SIZE]]} on two quiet cores. From a shell: `python -m bastion doctor`.")


def _start() -> None:
    st.session_state[PROBLEM] = ""
    try:
        start_doctor(manager(), DoctorRequest(chosen_pair(), QUESTIONS[st.session_state[SIZE]], tests=tuple(st.session_state[TESTED])))
    except UserError as error:
        st.session_state[PROBLEM] = str(error)
