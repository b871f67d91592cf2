"""A race on the page: its status line, then what is known of it, polled while it is decoded."""

from __future__ import annotations

import streamlit as st

from bastion.errors import UserError
from bastion.figures.race_charts import points_table, settled_axis, speedup_figure
from bastion.jobs.race_shown import RaceShown, show_race
from bastion.jobs.racing import resume_race
from pages.parts.chart import chart, dark
from pages.parts.race_result import race_result
from pages.parts.text import plain

POLL_SECONDS = 1.0   # seldom: on a CPU, drawing takes from what is being measured
STATUS_HEIGHT = 48


def race_area(first: RaceShown, ready: bool) -> None:
    """Draw the race and, while it is live, look again every second."""
    if not first.live:
        for problem in first.problems:
            st.error(plain(problem))
        _status(first, ready)
        if first.lanes:
            race_result(first)
            _chart(first)
        return

    @st.fragment(run_every=POLL_SECONDS)
    def area() -> None:
        shown = show_race(first.id)
        if not shown.live:
            st.rerun()   # the replay and the table come, and polling stops
        _status(shown, ready)
        _chart(shown)

    area()


def _status(shown: RaceShown, ready: bool) -> None:
    """One line of words, and a bar while the share done is known, in a place that keeps its height."""
    if shown.error:
        st.error(plain(shown.error))
    if not (shown.words or shown.live):
        return
    with st.container(height=STATUS_HEIGHT, border=False, key="race-status", gap=None):
        row = st.container(horizontal=True, vertical_alignment="center")
        added = " Plain decoding was not chosen and runs as the yardstick." if shown.race and shown.race.yardstick_added else ""
        if shown.share is not None:
            row.progress(shown.share, text=plain(shown.words))
        else:
            row.caption(plain(shown.words + added))
        if shown.left and not shown.live and shown.race is not None and ready and row.button("Decode the rest", key="race-resume", type="tertiary"):
            _resume(shown.id)


def _resume(race_id: str) -> None:
    try:
        resume_race(race_id)
    except UserError as error:
        st.error(plain(str(error)))
    else:
        st.rerun()


def _chart(shown: RaceShown) -> None:
    labels = shown.labels
    if not labels:
        return
    kept = st.session_state.setdefault("race-axes", {})   # an axis never shrinks while its race goes on
    key = shown.id or ",".join(run.id for run in shown.runs)
    kept[key] = max(kept.get(key, 0.0), settled_axis(shown.points))
    chart(speedup_figure(labels, shown.points, dark(), shown.live, kept[key]), points_table(shown.points), "race-speedup")
