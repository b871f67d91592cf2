"""Starting the doctor from the page: progress, remaining time, a stop."""

from __future__ import annotations

import streamlit as st

from bastion.jobs import FINAL, JobView, manager
from bastion.jobs.doctoring import JOB_ID, DoctorRequest, start_doctor
from pages.parts.fetch import model_at_hand
from pages.parts.text import plain

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
                _progress(view)
            else:
                _controls(view)

    area()


def _progress(view: JobView) -> None:
    words = f"Waiting: {view.ahead} ahead on this device" if view.ahead else view.progress.words
    left = view.progress.seconds_left
    if left is not None:
        words += f", about {max(left, 1):.0f} s more"
    row = st.container(horizontal=True, vertical_alignment="center")
    row.progress(view.progress.share or 0.0, text=plain(words))
    row.button("Stop", key="doctor-stop", on_click=manager().cancel, args=(JOB_ID,))
    st.caption("Decodes on this device wait until it is done.")


def _controls(view: JobView | None) -> None:
    st.button("Examine", type="primary", key="doctor-start", on_click=lambda: start_doctor(manager(), DoctorRequest()))
    ending = {"cancelled": "Stopped. ", "failed": plain(view.error) + " "}.get(view.state, "") if view is not None else ""
    st.caption(ending + "Examines the default pair, in about two minutes on two cores; any other: `python -m bastion doctor --target X --drafter Y`.")
