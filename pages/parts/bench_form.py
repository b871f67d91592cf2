"""The form of a benchmark: sets, methods, temperatures and limits, all in the address; Start."""

from __future__ import annotations

import math
from dataclasses import replace

import streamlit as st

from bastion.errors import UserError
from bastion.figures import numbers
from bastion.figures.glossary import GLOSSARY
from bastion.jobs import manager
from bastion.jobs.benchmark_job import ShownBenchmark, start_benchmark
from bastion.jobs.benchmark_plan import plan
from bastion.jobs.benchmark_request import MOST_METHODS, MOST_TEMPERATURES, BenchmarkRequest, split_temperatures
from bastion.jobs.benchmark_runs import bytes_per_token
from bastion.jobs.engine_import import engine_imported
from bastion.jobs.offers import offered_methods
from bastion.jobs.prompt_sources import GROUPS, HUB
from pages.parts.address import bound
from pages.parts.pair import chosen_pair
from pages.parts.text import plain

SUGGESTED_NODES = (8, 16, 32, 64)
DEFAULT_METHODS = ["ar", "dflash", "ddtree:16", "bastion"]
DEFAULTS = {"bench-limit": 8, "bench-tokens": 128, "bench-seed": 0}
LIMITS = {"bench-limit": (1, 100_000), "bench-tokens": (1, 4096), "bench-seed": (0, 2**31 - 1)}
BUTTON_WIDTH = 128   # pixels


def bench_form(shown: ShownBenchmark | None, ready: bool) -> None:
    """Draw the form. `ready`: the model is here. Start is dimmed while the one on show is at work."""
    place = st.container()
    if not engine_imported():
        with place, st.spinner("Starting the engine: once, some seconds"):
            offered_methods()
    _bring(shown)
    _choices()
    row = st.container(horizontal=True, vertical_alignment="center")
    live = shown is not None and shown.live
    row.button("Start", type="primary", width=BUTTON_WIDTH, on_click=_start, disabled=not ready or live, key="bench-start")
    row.checkbox("Measure again", key="bench-again", bind="query-params",
                 help="A finished benchmark of the same request is shown again unless this is on. One left unfinished always goes on.")
    row.checkbox("Keep runs", key="bench-keep", bind="query-params",
                 help="Save every decode as a run, every tree traced, for Explore and Surrogate. It takes space, and tracing takes "
                      "time outside the times that are measured.")
    _plan_line(row)
    if problem := st.session_state.get("bench-problem"):
        st.error(plain(problem))


def _bring(shown: ShownBenchmark | None) -> None:
    """A benchmark opened by its link brings what it was asked for, where the address itself says nothing of it."""
    state = st.session_state
    if shown is None or shown.benchmark is None or state.get("bench-brought") == shown.id:
        return
    state["bench-brought"] = shown.id
    try:
        request = BenchmarkRequest.from_json(shown.benchmark.info["request"])
    except UserError:
        return
    brought = {"bench-sets": list(request.sets), "bench-methods": list(request.methods),
               "bench-temperatures": [f"{value:g}" for value in request.temperatures], "bench-limit": request.limit,
               "bench-tokens": request.max_new_tokens, "bench-seed": request.seed, "bench-keep": request.keep_runs}
    if any(name in st.query_params for name in brought):
        return
    for name, value in brought.items():
        low, high = LIMITS.get(name, (None, None))
        if low is None or value is None or low <= value <= high:
            state[name] = value


def _choices() -> None:
    offers = offered_methods()
    methods = [name for offer in offers for name in ([f"{offer.name}:{n}" for n in SUGGESTED_NODES] if offer.argument == "N" else [] if offer.argument else [offer.name])]
    row = st.container(horizontal=True, vertical_alignment="bottom")
    row.multiselect("Prompt sets", ["ours", *HUB, *GROUPS], default=["ours"], key="bench-sets", bind="query-params",
                    accept_new_options=True, width=340, placeholder="Choose, or type the path of a .jsonl file",
                    help="ours: 24 prompts of this program, no network needed. The eight sets of the paper's main table and the seven "
                         "of LongBench are fetched once through Hugging Face datasets; paper-short and longbench stand for all "
                         "of them. A file holds one JSON object a line, with \"prompt\" or \"turns\".")
    row.multiselect("Methods", methods, default=[name for name in DEFAULT_METHODS if name in methods], key="bench-methods",
                    bind="query-params", accept_new_options=True, max_selections=MOST_METHODS, width=380,
                    placeholder="Choose, or type one such as ddtree:12",
                    help=" · ".join(f"{offer.label}: {offer.summary}" for offer in offers)
                         + ". Plain decoding (ar) is the yardstick and runs even when it is not chosen.")
    row.multiselect("Temperatures", ["0", "0.5", "1"], default=["0"], key="bench-temperatures", bind="query-params",
                    accept_new_options=True, max_selections=MOST_TEMPERATURES, width=190, help="Each prompt is decoded at every one of them.")
    row.number_input("Prompts a set, at most", *LIMITS["bench-limit"], DEFAULTS["bench-limit"], key="bench-limit", bind=bound("bench-limit"), width=170,
                     placeholder="all", help="Empty takes all. Of the published sets they are drawn as published: shuffled with seed 0.")
    row.number_input("New tokens, at most", *LIMITS["bench-tokens"], DEFAULTS["bench-tokens"], key="bench-tokens", bind=bound("bench-tokens"), step=32, width=160)
    row.number_input("Seed", *LIMITS["bench-seed"], DEFAULTS["bench-seed"], key="bench-seed", bind=bound("bench-seed"), width=110,
                     help="Above temperature 0 every prompt draws with a seed of its own that follows from this one. " + GLOSSARY["plain decoding"])


def _request() -> BenchmarkRequest:
    state = st.session_state
    return BenchmarkRequest(
        sets=tuple(state["bench-sets"]), methods=tuple(state["bench-methods"]),
        temperatures=split_temperatures(",".join(state["bench-temperatures"])), limit=state["bench-limit"],
        max_new_tokens=state["bench-tokens"], seed=state["bench-seed"], keep_runs=state["bench-keep"])


def _plan_line(row: st.delta_generator.DeltaGenerator) -> None:
    """How much was asked for; nothing while that cannot be told, since Start says what is wrong."""
    try:
        request = _request()
        known = plan(request)
    except UserError:
        row.caption("")
        return
    if known.decodes is None:
        row.caption(f"To be fetched first: {plain(', '.join(known.to_fetch))}")
        return
    words = f"{numbers.counted(known.decodes, 'decode')} of at most {numbers.counted(request.max_new_tokens, 'token')}"
    if request.keep_runs:
        size = known.kept_bytes(request.max_new_tokens, _bytes_per_token())
        words += f"; runs: about {numbers.storage(rounded_up(size))} at most" if size is not None else "; what runs take is known once one is saved"
    row.caption(words)


def _bytes_per_token() -> float | None:
    """What a token takes on disk, asked once a session: every run that is saved would move it a little."""
    state = st.session_state
    if state.get("bench-token-bytes") is None:
        state["bench-token-bytes"] = bytes_per_token(manager().store)
    return state["bench-token-bytes"]


def rounded_up(size: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, ...: an estimate says no more than its order, and is the same tomorrow."""
    unit = 10 ** math.floor(math.log10(max(size, 1)))
    return next(factor * unit for factor in (1, 2, 5, 10) if size <= factor * unit)


def _start() -> None:
    try:
        bench_id = start_benchmark(replace(_request(), pair=chosen_pair()), again=st.session_state["bench-again"])
    except UserError as error:
        st.session_state["bench-problem"] = str(error)
        return
    st.session_state["bench-problem"] = None
    st.session_state["bench-brought"] = bench_id   # it came from this form
    st.query_params["bench-id"] = bench_id
