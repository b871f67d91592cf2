"""The form of a race: prompt, methods, repeats and sampling, all in the address; Start and Stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from bastion.errors import UserError
from bastion.figures.glossary import GLOSSARY
from bastion.jobs import EXAMPLES, manager
from bastion.jobs.engine_import import engine_imported
from bastion.jobs.offers import MethodOffer, offered_methods
from bastion.jobs.race_shown import RaceShown
from bastion.jobs.racing import MOST_METHODS, MOST_REPEATS, RaceRequest, request_of, start_race
from pages.parts.address import bound
from pages.parts.pair import chosen_pair
from pages.parts.text import plain

BUTTON_WIDTH, FIELD_WIDTH = 128, 112   # pixels
SUGGESTED_NODES = (8, 16, 32)
DEFAULT_METHODS = ("ar", "dflash", "ddtree:16", "bastion")
LIMITS: dict[str, tuple[float, float]] = {"race-temperature": (0.0, 5.0), "race-tokens": (1, 4096), "race-seed": (0, 2**31 - 1),
                                          "race-repeats": (1, MOST_REPEATS)}


def race_form(shown: RaceShown | None, ready: bool) -> None:
    """Draw the form. A race opened by its link brings its prompt and settings when the address holds none."""
    _bring(shown)
    live = shown is not None and shown.live
    st.pills("Examples", [example.name for example in EXAMPLES], key="race-example", on_change=_take_example, label_visibility="collapsed")
    row = st.container(horizontal=True)
    row.text_area("Prompt", key="race-prompt", bind="query-params", height=92, label_visibility="collapsed",
                  placeholder="Type a prompt, or pick an example above. The model's chat template is applied.")
    with row.container(width=BUTTON_WIDTH):
        st.button("Start", type="primary", width="stretch", on_click=_start, disabled=not ready or live)
        st.button("Stop", key="race-stop", width="stretch", on_click=_stop, args=(shown.id if live else "",), disabled=not live)
    st.html("<style>.st-key-race-settings {min-height: 82px}</style>")   # what follows keeps its place while the engine starts
    with st.container(key="race-settings"):
        place = st.container()
        if not engine_imported():
            with place, st.spinner("Starting the engine: once, some seconds"):
                offered_methods()
        _settings()
    if problem := st.session_state.get("race-problem"):
        st.error(plain(problem))


def _settings() -> None:
    offers = offered_methods()
    options = [name for offer in offers for name in _suggested(offer)]
    row = st.container(horizontal=True, vertical_alignment="bottom")
    row.multiselect("Methods", options, default=[name for name in DEFAULT_METHODS if name in options], key="race-methods",
                    bind="query-params", accept_new_options=True, filter_mode="prefix", max_selections=MOST_METHODS, width=380,
                    placeholder="Choose, or type one such as ddtree:12",
                    help="How each step's tree is grown; any N can be typed, such as ddtree:12, and another estimator of "
                         "verify times, such as bastion@table. "
                         + " · ".join(f"{offer.label}: {offer.summary}" for offer in offers)
                         + ". Plain decoding (ar) is the yardstick and runs even when it is not chosen.")
    row.number_input("Repeats", *LIMITS["race-repeats"], 3, key="race-repeats", bind=bound("race-repeats"), width=FIELD_WIDTH,
                     help="Every repeat decodes with each method once, in an order of its own.")
    row.number_input("New tokens, at most", *LIMITS["race-tokens"], 128, key="race-tokens", bind=bound("race-tokens"), step=32, width=150)
    row.number_input("Temperature", *LIMITS["race-temperature"], 0.0, key="race-temperature", bind=bound("race-temperature"), step=0.1,
                     format="%.2f", width=FIELD_WIDTH,
                     help="0 takes the target's most probable token: all methods must then emit the same text. Above 0 tokens are "
                          "drawn from exactly the target's distribution, and texts differ.")
    row.number_input("Seed", *LIMITS["race-seed"], 0, key="race-seed", bind=bound("race-seed"), width=FIELD_WIDTH,
                     help="The same for all methods and repeats. " + GLOSSARY["plain decoding"])


def _suggested(offer: MethodOffer) -> list[str]:
    """Some ways to write a method; others can be typed."""
    if offer.argument is None:
        return [offer.name]
    return [f"{offer.name}:{n}" for n in SUGGESTED_NODES] if offer.argument == "N" else []


def _request() -> RaceRequest:
    state = st.session_state
    return RaceRequest(prompt=state["race-prompt"] or "", methods=tuple(state["race-methods"]), repeats=state["race-repeats"],
                       temperature=state["race-temperature"], max_new_tokens=state["race-tokens"], seed=state["race-seed"])


def _start() -> None:
    try:
        race_id = start_race(replace(_request(), pair=chosen_pair()))
    except UserError as error:
        st.session_state["race-problem"] = str(error)
        return
    st.session_state["race-problem"] = None
    st.session_state["race-brought"] = race_id   # it came from this form
    show_in_address(race_id)


def _stop(race_id: str) -> None:
    if race_id:
        manager().cancel(race_id)


def show_in_address(race_id: str) -> None:
    """The race on show; runs that were picked by hand leave the address."""
    if "race-runs" in st.query_params:
        del st.query_params["race-runs"]
    st.query_params["race-id"] = race_id


def _bring(shown: RaceShown | None) -> None:
    state = st.session_state
    if shown is None or shown.race is None or state.get("race-brought") == shown.id:
        return
    state["race-brought"] = shown.id
    try:
        request = request_of(shown.race)
    except UserError:
        return
    if state.get("race-prompt") or "race-prompt" in st.query_params:
        return
    methods = [method for method in request.methods if not (method == "ar" and shown.race.yardstick_added)]
    brought: dict[str, Any] = {"race-prompt": request.prompt, "race-methods": methods, "race-repeats": request.repeats,
                               "race-tokens": request.max_new_tokens, "race-temperature": request.temperature, "race-seed": request.seed}
    for name, value in brought.items():
        low, high = LIMITS.get(name, (None, None))
        if low is None or low <= value <= high:
            state[name] = value


def _take_example() -> None:
    chosen = next((e for e in EXAMPLES if e.name == st.session_state.get("race-example")), None)
    if chosen is not None:
        st.session_state["race-prompt"] = chosen.prompt
        st.session_state["race-example"] = None   # a pill is a button here, not a state
