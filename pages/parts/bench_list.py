"""Earlier benchmarks in the sidebar: open one by its link."""

from __future__ import annotations

import streamlit as st

from bastion.figures import numbers
from bastion.records.benchmark_store import BenchmarkStore, BenchmarkSummary
from pages.parts.sidebar import when
from pages.parts.text import plain

LISTED = 12


def bench_list(current: str) -> None:
    """Links to earlier benchmarks, newest first; `current` is the one on show."""
    earlier = BenchmarkStore().list()
    with st.sidebar:
        if not earlier:
            st.caption("Benchmarks that were begun are listed here.")
            return
        st.markdown("**Earlier benchmarks**")
        with st.container(gap=None, key="recent"):
            for one in earlier[:LISTED]:
                st.page_link("pages/benchmark.py", label=_label(one), query_params={"bench-id": one.id}, disabled=one.id == current)
        if len(earlier) > LISTED:
            labels = {one.id: _label(one).replace("\\", "") for one in earlier[LISTED:]}
            st.selectbox("Older benchmarks", list(labels), index=None, key="bench-older", on_change=_open_older,
                         placeholder=f"{len(labels)} older", format_func=labels.get, label_visibility="collapsed")


def _open_older() -> None:
    if chosen := st.session_state.get("bench-older"):
        st.query_params["bench-id"] = chosen
        st.session_state["bench-older"] = None


def _label(one: BenchmarkSummary) -> str:
    sets = one.sets[0] if len(one.sets) == 1 else numbers.counted(len(one.sets), "set")
    state = "" if one.finished else f" ({one.done} of {one.total})"
    return f"{plain(when(one.created))}  {plain(sets, 18)}, {numbers.counted(len(one.methods), 'method')}{state}"
