"""The first start: the default model is fetched once, with its progress on show."""

from __future__ import annotations

import streamlit as st

from bastion.jobs import manager, model_ready


def model_at_hand() -> bool:
    """Whether the default model is on this machine; fetches it when not, and says how far that is."""
    if model_ready():
        return True
    if "fetch" not in st.session_state:
        st.session_state["fetch"] = manager().fetch_default()
    _progress(st.session_state["fetch"])
    return False


def _progress(job_id: str) -> None:
    @st.fragment(run_every=0.5 if not manager().view(job_id).final else None)
    def area() -> None:
        view = manager().view(job_id)
        if view.state == "failed":
            st.error(view.error)
        elif view.final and not model_ready():
            st.info("The default model is not on this machine yet: fetch it here, or run `python -m bastion fetch`.")
        elif view.final:
            st.rerun()
        else:
            left = f", about {view.progress.seconds_left:.0f} s left" if view.progress.seconds_left else ""
            words, button = st.columns([6, 1], vertical_alignment="center")
            words.progress(view.progress.share or 0.0,
                           text=f"First start, once: {view.progress.words}{left}")
            button.button("Stop", key="stop-fetch", width="stretch", on_click=manager().cancel, args=(job_id,))
            return
        st.button("Fetch the default model (93 MB)", on_click=_again)

    area()


def _again() -> None:
    st.session_state["fetch"] = manager().fetch_default()
