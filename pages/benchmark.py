"""Benchmark: prompt sets times methods times temperatures, laid out as the paper's table."""

import streamlit as st

from bastion.errors import UserError
from bastion.jobs.benchmark_job import show_benchmark
from bastion.jobs.offers import engine_missing
from pages.parts.bench_form import bench_form
from pages.parts.bench_list import bench_list
from pages.parts.bench_live import bench_area
from pages.parts.fetch import model_at_hand
from pages.parts.pair import pair_chooser, saved_choice
from pages.parts.text import plain

st.title("Benchmark", anchor=False)
st.caption("Methods measured on prompt sets, every prompt by every method in turn: speedup and tau per set, and their mean.")

asked = st.query_params.get("bench-id", "")
if not asked and st.session_state.get("benched"):   # from another page of this session
    asked = st.query_params["bench-id"] = st.session_state["benched"]
shown, problem = None, ""
try:
    shown = show_benchmark(asked) if asked else None
except UserError as error:
    problem = str(error)
    if asked == st.session_state.get("benched"):   # it was deleted meanwhile
        problem, asked = "", ""
        del st.query_params["bench-id"]
st.session_state["benched"] = asked

missing = engine_missing()
choice = None
if not missing:
    bench = shown.benchmark if shown is not None else None
    choice = pair_chooser(asked, saved_choice(bench.info["request"].get("pair"))) if bench is not None else pair_chooser()
bench_list(asked)
if missing:
    st.info(f"Earlier benchmarks can be read here, not run. {missing}")
ready = choice is not None and model_at_hand(choice)
if choice is not None:
    bench_form(shown, ready)

if problem:
    st.error(plain(problem))
elif shown is None:
    st.subheader("Choose prompt sets and methods, and press Start" if ready else "Open an earlier benchmark from the list", anchor=False)
    st.markdown("Every result is on disk at once: a benchmark that is stopped, or whose server is killed, goes on where it was. "
                "The set `ours` ships with the program; the published ones are fetched once and kept; any JSON lines file works "
                "by its path. The same from a shell: `python -m bastion bench`.")
else:
    bench_area(shown, ready)
