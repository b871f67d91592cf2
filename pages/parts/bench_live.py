"""A benchmark on the page: status, progress per cell, table and charts, polled while it is at work."""

from __future__ import annotations

import streamlit as st

from bastion.analysis.benchmark import progress_by_cell
from bastion.errors import UserError
from bastion.figures.benchmark_html import progress_html
from bastion.jobs import manager
from bastion.jobs.benchmark import session_notes
from bastion.jobs.benchmark_job import ShownBenchmark, resume_benchmark, show_benchmark
from bastion.records.benchmark_store import Benchmark, BenchmarkStore
from pages.parts.bench_table import bench_results
from pages.parts.chart import dark
from pages.parts.text import plain

POLL_SECONDS = 1.0
STATUS_HEIGHT = 56   # pixels, the same while it is at work and after


def bench_area(first: ShownBenchmark, ready: bool) -> None:
    """Draw the benchmark and, while it is at work, look again every second."""

    @st.fragment(run_every=POLL_SECONDS if first.live else None)
    def area() -> None:
        try:
            shown = show_benchmark(first.id)
        except UserError as error:
            st.error(plain(str(error)))
            return
        if shown.live != first.live:
            st.rerun()   # buttons change, and polling stops
        _status(shown, ready)
        if shown.benchmark is None:
            return
        _progress(shown.benchmark)
        for note in session_notes(shown.benchmark.info):
            st.caption(plain(note))
        bench_results(shown.benchmark)

    area()


def _status(shown: ShownBenchmark, ready: bool) -> None:
    if shown.view is not None and shown.view.state == "failed":
        st.error(plain(shown.view.error))
    if problem := st.session_state.pop("bench-trouble", ""):
        st.error(plain(problem))
    with st.container(height=STATUS_HEIGHT, border=False, key="bench-status", gap=None):
        row = st.container(horizontal=True, vertical_alignment="center")
        if shown.share is not None and (shown.live or shown.share < 1):
            row.progress(shown.share, text=plain(shown.words))
        else:
            row.caption(plain(shown.words))
        if shown.view is not None and not shown.view.final:
            row.button("Stop", key="bench-stop", on_click=manager().cancel, args=(shown.id,))
        elif not shown.live and shown.benchmark is not None:
            if not shown.benchmark.finished:
                row.button("Resume", key="bench-resume", on_click=_resume, args=(shown.id,), disabled=not ready)
            with row.popover("Delete"):
                st.markdown("Its results go; runs that were kept stay.")
                st.button("Delete for good", key="bench-delete", on_click=_delete, args=(shown.id,))


def _progress(benchmark: Benchmark) -> None:
    if not benchmark.finished:
        counts = progress_by_cell(benchmark.rows, benchmark.cells())
        st.html(progress_html(counts, benchmark.sets, benchmark.methods, dark()))


def _resume(bench_id: str) -> None:
    try:
        resume_benchmark(bench_id)
    except UserError as error:
        st.session_state["bench-trouble"] = str(error)


def _delete(bench_id: str) -> None:
    try:
        BenchmarkStore().delete(bench_id)
    except UserError as error:
        st.session_state["bench-trouble"] = str(error)
        return
    st.session_state["benched"] = ""
    if "bench-id" in st.query_params:
        del st.query_params["bench-id"]
