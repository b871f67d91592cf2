"""The first start: the default model is fetched once, with its progress on show."""

from __future__ import annotations

import streamlit as st

from bastion.jobs import PairChoice, manager, model_ready
from bastion.jobs.request import DEFAULT_PRESET
from pages.parts.text import plain


def model_at_hand(choice: PairChoice) -> bool:
    """Whether decoding can begin: the default model, where it is the choice, is fetched first, with its progress on show.
    Other pairs are fetched by the job that needs them."""
    if choice.preset != DEFAULT_PRESET or model_ready():
        return True
    view = manager().view(st.session_state.get("fetch", ""))
    if view is None:
        st.session_state["fetch"] = manager().fetch_default()
        view = manager().view(st.session_state["fetch"])
    _progress(view.id, polling=not view.final)
    return False


def _progress(job_id: str, polling: bool) -> None:
    @st.fragment(run_every=0.5 if polling else None)
    def area() -> None:
        view = manager().view(job_id)
        if view.final == polling or view.final and model_ready():
            st.rerun()   # polling starts and stops with the job, and the rest of the page with the model
        if not view.final:
            left = f", about {view.progress.seconds_left:.0f} s left" if view.progress.seconds_left else ""
            row = st.container(horizontal=True, vertical_alignment="center")
            row.progress(view.progress.share or 0.0, text=f"First start, once: {plain(view.progress.words + left)}")
            row.button("Stop", key="stop-fetch", on_click=manager().cancel, args=(job_id,))
            return
        if view.state == "failed":
            st.error(view.error)
        else:
            st.info("The default model is not on this machine yet: fetch it here, or run `python -m bastion fetch`.")
        if st.button("Fetch the default model (93 MB)"):
            st.session_state["fetch"] = manager().fetch_default()
            st.rerun()

    area()
