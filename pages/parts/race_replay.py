"""The replay: the component, and which repeat it shows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import streamlit as st

from bastion.figures.race_component import CSS, HTML, JS, NAME
from bastion.figures.race_payload import race_payload
from bastion.jobs.race_shown import RaceShown

KEPT = 4
MEDIAN = "median"

_component = st.components.v2.component(NAME, html=HTML, css=CSS, js=JS)
_payloads: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
_lock = threading.Lock()


def race_replay(shown: RaceShown) -> None:
    repeats = sorted({repeat for lane in shown.lanes for repeat in lane.repeats})
    if len(repeats) > 1:
        options = [MEDIAN, *(str(repeat) for repeat in repeats)]
        if st.session_state.get("race-replay") not in (None, *options):
            st.session_state["race-replay"] = MEDIAN
        st.segmented_control("Replayed", options, default=MEDIAN, key="race-replay", bind="query-params", required=True,
                             format_func=lambda name: "each method's median repeat" if name == MEDIAN else f"repeat {name}",
                             label_visibility="collapsed")
    chosen = st.session_state.get("race-replay") or MEDIAN
    repeat = int(chosen) if len(repeats) > 1 and chosen.isdecimal() and int(chosen) in repeats else None
    _component(key="race-replay-lanes", data=_payload(shown, repeat))


def _payload(shown: RaceShown, repeat: int | None) -> dict[str, Any]:
    """Made once for what is replayed: it does not change."""
    ids = tuple((lane.label, run.id, len(run.steps)) for lane in shown.lanes for run in lane.runs)
    with _lock:
        if (ids, repeat) not in _payloads:
            _payloads[ids, repeat] = race_payload(str(hash(ids)), shown.lanes, repeat)
            while len(_payloads) > KEPT:
                _payloads.popitem(last=False)
        return _payloads[ids, repeat]
