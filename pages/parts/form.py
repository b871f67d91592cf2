"""The prompt box, its examples, the settings of a decode, and the buttons that start and stop it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from bastion.errors import UserError
from bastion.figures.glossary import GLOSSARY
from bastion.figures.faithfulness import rule_label
from bastion.figures.latency_words import estimator_name
from bastion.jobs import EXAMPLES, DecodeRequest, manager
from bastion.jobs.engine_import import engine_imported
from bastion.jobs.offers import MethodOffer, offered_methods
from bastion.jobs.shown import Shown
from bastion.latency import ESTIMATORS
from pages.parts.pair import chosen_pair
from pages.parts.text import plain

BUTTON_WIDTH, FIELD_WIDTH = 128, 150   # pixels; what does not fit beside wraps below

DEFAULTS = {"prompt": "", "method": "bastion", "method_argument": 16, "method_widths": "4,2,2,1", "method_rates": "0.8",
            "estimator": "roofline", "temperature": 0.0, "top_p": 1.0, "top_k": 0,
            "max_new_tokens": 128, "seed": 0, "min_nodes": 1, "max_nodes": None, "acceptance": "walk"}


LIMITS = {"temperature": (0.0, 5.0), "top_p": (0.01, 1.0), "top_k": (0, 100_000), "max_new_tokens": (1, 4096),
          "seed": (0, 2**31 - 1)}
MOST_NODES = 2048
TYPED = {   # how an argument is written -> key of its field, characters it can hold, label, help
    "a,b,c": ("method_widths", "0123456789,", "Children at each depth",
              "How many of the most probable tokens stand below every node of depth 0, 1, 2, ..."),
    "R": ("method_rates", "0123456789,.", "Rate of agreement",
          "How often the simulated drafter's first choice is the target's token: one rate, or one for each depth, such as 0.8,0.6,0.4."),
}


def keep_defaults() -> None:
    """Give every widget its first value, also while it is not drawn; `persist_state` keeps what it becomes.

    Only what is absent is set: a value set in a rerun is pushed to the browser, over what a person typed meanwhile.
    """
    for name, value in DEFAULTS.items():
        st.session_state.setdefault(name, value)


def prompt_form(shown: Shown | None, engine: bool) -> None:
    """Draw the form. `engine`: models can be run here. A run opened by its link brings its prompt and settings."""
    running, decoding = shown is not None and shown.live, shown is not None and not shown.final
    brought = _bring_prompt(shown)
    keep_defaults()
    st.pills("Examples", [example.name for example in EXAMPLES], key="example", on_change=_take_example,
             label_visibility="collapsed")
    row = st.container(horizontal=True)
    row.text_area("Prompt", key="prompt", persist_state="session", height=92, label_visibility="collapsed",
                  placeholder="Type a prompt, or pick an example above. The model's chat template is applied.")
    with row.container(width=BUTTON_WIDTH):
        st.button("Decode", type="primary", width="stretch", on_click=_start, disabled=not engine or decoding)
        st.button("Stop", width="stretch", on_click=_stop, disabled=not running)
    if engine:
        _settings(shown if brought else None)
    place = st.container()
    if problem := st.session_state.get("problem"):
        place.error(plain(problem))


def _bring_prompt(shown: Shown | None) -> bool:
    """Whether the run on show has just filled the empty form; what a person typed stays."""
    state = st.session_state
    if shown is None or state.get("brought") == shown.id:
        return False
    state["brought"] = shown.id
    if state.get("prompt"):
        return False
    state["prompt"] = shown.prompt
    return True


def _bring_settings(info: Mapping[str, Any], methods: Mapping[str, MethodOffer]) -> None:
    """Method and sampling of a run into the form. A run may come from elsewhere: what no field takes is passed over."""
    name, _, argument = str(info.get("method") or "").partition(":")
    name, _, estimator = name.partition("@")
    if name in methods:
        st.session_state["method"] = name
        st.session_state["estimator"] = estimator if estimator in ESTIMATORS else DEFAULTS["estimator"]
        if argument.isdecimal() and len(argument) < 6 and 1 <= int(argument) <= MOST_NODES:
            st.session_state["method_argument"] = int(argument)
        for written, (key, characters, _, _) in TYPED.items():
            if methods[name].argument == written and 0 < len(argument) <= 40 and set(argument) <= set(characters):
                st.session_state[key] = argument
    sampling = info.get("sampling")
    rule = sampling.get("acceptance") if isinstance(sampling, Mapping) else None
    if name in methods:
        st.session_state["acceptance"] = rule if rule in methods[name].rules else DEFAULTS["acceptance"]
    for field, (low, high) in LIMITS.items():
        value = sampling.get(field) if isinstance(sampling, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            st.session_state[field] = type(low)(value)


def _settings(brought: Shown | None) -> None:
    place = st.container()   # always there, so that what follows keeps its place on the page
    if not engine_imported():
        with place, st.spinner("Starting the engine: once, some seconds"):
            offered_methods()
    offers = {offer.name: offer for offer in offered_methods()}
    state = st.session_state
    if brought is not None:
        _bring_settings(brought.info, offers)
    row = st.container(horizontal=True, vertical_alignment="bottom")
    row.selectbox("Method", list(offers), key="method", persist_state="session", width=FIELD_WIDTH,
                     format_func=lambda name: offers[name].label,
                     help="How each step's tree of drafted tokens is grown. "
                          + " · ".join(f"{offer.name}: {offer.summary}" for offer in offers.values()))
    offer = offers[state["method"]]
    if offer.argument in TYPED:
        key, _, label, words = TYPED[offer.argument]
        row.text_input(label, key=key, persist_state="session", width=FIELD_WIDTH, max_chars=40, help=words)
    elif offer.argument:
        row.number_input("Drafted nodes N", 1, MOST_NODES, key="method_argument", persist_state="session", step=8, width=FIELD_WIDTH,
                         help="Nodes of every tree beside its root.")
    row.number_input("Temperature", *LIMITS["temperature"], key="temperature", persist_state="session", step=0.1, format="%.2f", width=FIELD_WIDTH,
                     help="0 takes the target's most probable token. Above 0 tokens are drawn from exactly the "
                          "target's distribution.")
    row.number_input("New tokens, at most", *LIMITS["max_new_tokens"], key="max_new_tokens", persist_state="session", step=32, width=FIELD_WIDTH)
    if state["acceptance"] not in offer.rules:   # it went with another method
        state["acceptance"] = DEFAULTS["acceptance"]
    with row.popover("Budget and sampling"):
        if offer.adaptive:
            low, high = st.columns(2)
            low.number_input("Smallest tree", 1, 4096, key="min_nodes", persist_state="session", help=GLOSSARY["budget"])
            high.number_input("Largest tree", 1, 8192, key="max_nodes", persist_state="session", step=32, placeholder="as timed",
                              help=GLOSSARY["budget"] + " Left empty: the largest tree that the calibration timed.")
            st.selectbox("Verify time predicted by", list(ESTIMATORS), key="estimator", persist_state="session", format_func=estimator_name,
                         help="What each tree's size is chosen by. The Latency page shows how far each is off on this device.")
        left, right = st.columns(2)
        left.number_input("Top-p", *LIMITS["top_p"], key="top_p", persist_state="session", step=0.05, format="%.2f",
                          help="Keep the most probable tokens whose probabilities add up to this; 1 keeps all.")
        right.number_input("Top-k", *LIMITS["top_k"], key="top_k", persist_state="session", step=10, help="Keep this many tokens; 0 keeps all.")
        st.selectbox("Acceptance rule", offer.rules, key="acceptance", persist_state="session", format_func=rule_label,
                     help=GLOSSARY["acceptance rule"] + " Above temperature 0 rules differ; those that fit the method are offered. "
                          "reference-argmax is what the paper's released code does, to be watched going wrong.")
        st.number_input("Seed", *LIMITS["seed"], key="seed", persist_state="session", help="The same seed draws the same tokens.")


def _take_example() -> None:
    chosen = next((e for e in EXAMPLES if e.name == st.session_state.get("example")), None)
    if chosen is not None:
        st.session_state["prompt"] = chosen.prompt
        st.session_state["example"] = None   # a pill is a button here, not a state


def _start() -> None:
    state = st.session_state
    offer = next(o for o in offered_methods() if o.name == state["method"])
    argument = f"@{state['estimator']}" if offer.adaptive and state["estimator"] != DEFAULTS["estimator"] else ""
    if offer.argument:
        argument = f":{state[TYPED[offer.argument][0] if offer.argument in TYPED else 'method_argument']}"
    request = DecodeRequest(
        prompt=state["prompt"], method=offer.name + argument, pair=chosen_pair(),
        temperature=state["temperature"], top_p=state["top_p"], top_k=state["top_k"],
        max_new_tokens=state["max_new_tokens"], seed=state["seed"],
        min_nodes=state["min_nodes"], max_nodes=state["max_nodes"], acceptance=state["acceptance"])
    try:
        st.query_params.from_dict({"run": manager().submit(request)})
        state["problem"] = None
    except UserError as error:
        state["problem"] = str(error)


def _stop() -> None:
    if run_id := st.query_params.get("run"):
        manager().cancel(run_id)
