"""Starting the doctor from the page: progress, remaining time, a stop."""

from __future__ import annotations

import streamlit as st

from bastion.jobs import FINAL, JobView, manager
from bastion.jobs.doctoring import JOB_ID, DoctorRequest, start_doctor
from pages.parts.fetch import model_at_hand
from pages.parts.text import plain
from pages.parts.work_progress import work_progress

HEIGHT = 96   # pixels: the same with the button and with the progress, so that nothing below moves
POLL_SECONDS = 0.5


def examine_here() -> None:
    """The button, or how far the examination is that runs."""
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
            st.rerun()
        with st.container(height=HEIGHT, border=False, key="doctor-work", gap="small"):
            if running:
                work_progress(view, "doctor-stop", "Decodes on this device wait until it is done.")
            else:
                _controls(view)

    area()


def _controls(view: JobView | None) -> None:
    st.button("Examine", type="primary", key="doctor-start", on_click=lambda: start_doctor(manager(), DoctorRequest()))
    ending = {"cancelled": "Stopped. ", "failed": plain(view.error) + " "}.get(view.state, "") if view is not None else ""
    st.caption(ending + "Examines the default pair, in about two minutes on two cores; any other: `python -m bastion doctor --target X --drafter Y`.")
