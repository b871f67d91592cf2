"""How far a job of the device's queue is, with a stop: the same row for every kind of work."""

from __future__ import annotations

import streamlit as st

from bastion.jobs import JobView, manager
from pages.parts.text import plain


def work_progress(view: JobView, key: str, meanwhile: str) -> None:
    """Words, remaining time, bar and Stop; `meanwhile` says what waits for it. `key` names the button."""
    words = f"Waiting: {view.ahead} ahead on this device" if view.ahead else view.progress.words
    left = view.progress.seconds_left
    if left is not None:
        words += f", about {max(left, 1):.0f} s more"
    row = st.container(horizontal=True, vertical_alignment="center")
    row.progress(view.progress.share or 0.0, text=plain(words))
    row.button("Stop", key=key, on_click=manager().cancel, args=(view.id,))
    st.caption(meanwhile)
