"""The replay: the component, and which repeat it shows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import streamlit as st

from bastion.analysis.race_replayed import nearest_repeat, repeat_speedups
from bastion.figures import numbers
from bastion.figures.race_component import CSS, HTML, JS, NAME
from bastion.figures.race_payload import race_payload
from bastion.jobs.race_shown import RaceShown
from pages.parts.text import plain

KEPT = 4
NEAREST = "nearest"

_component = st.components.v2.component(NAME, html=HTML, css=CSS, js=JS)
_payloads: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
_lock = threading.Lock()


def race_replay(shown: RaceShown) -> None:
    """The lanes, all from one repeat: the one nearest to the medians, or another that is chosen."""
    repeats = sorted({repeat for lane in shown.lanes for repeat in lane.repeats})
    nearest, repeat = nearest_repeat(shown.lanes), None
    if len(repeats) > 1 and nearest is not None:
        options = [NEAREST, *(str(other) for other in repeats if other != nearest)]
        if st.session_state.get("race-replay") not in (None, *options):
            st.session_state["race-replay"] = NEAREST   # another race, which has fewer repeats or another nearest
        chosen = st.segmented_control(
            "Replayed", options, default=NEAREST, key="race-replay", bind="query-params", required=True, label_visibility="collapsed",
            format_func=lambda name: f"repeat {nearest}, nearest the medians" if name == NEAREST else f"repeat {name}")
        repeat = None if chosen in (None, NEAREST) else int(chosen)
        st.caption(_words(shown, repeat or nearest))
    _component(key="race-replay-lanes", data=_payload(shown, repeat))


def _words(shown: RaceShown, repeat: int) -> str:
    speeds = ", ".join(f"{plain(label)} {numbers.ratio(value)}" for label, value in repeat_speedups(shown.lanes, repeat).items())
    against = f" Against plain decoding in it: {speeds}." if speeds else ""
    apart = " A lane that has none of it says which it shows." if any(lane.run(repeat) is None for lane in shown.lanes) else ""
    return f"All lanes are of repeat {repeat}.{apart}{against} The table below has the medians over all repeats."


def _payload(shown: RaceShown, repeat: int | None) -> dict[str, Any]:
    """Made once for what is replayed: it does not change."""
    ids = tuple((lane.label, run.id, len(run.steps)) for lane in shown.lanes for run in lane.runs)
    with _lock:
        if (ids, repeat) not in _payloads:
            _payloads[ids, repeat] = race_payload(str(hash(ids)), shown.lanes, repeat)
            while len(_payloads) > KEPT:
                _payloads.popitem(last=False)
        return _payloads[ids, repeat]
