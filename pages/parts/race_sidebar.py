"""The sidebar of Compare: on what the race ran, and the races before it."""

from __future__ import annotations

import streamlit as st

from bastion.figures.number_type_words import number_type_words
from bastion.jobs import manager
from bastion.jobs.race_shown import RaceShown
from bastion.records.races import Race, RaceStore, finished_slots
from pages.parts.sidebar import calibration_words, when
from pages.parts.text import plain

LISTED = 8


def race_sidebar(shown: RaceShown | None) -> None:
    with st.sidebar:
        if shown is not None and shown.info:
            facts = [(name, value) for name, value in _facts(shown) if value]
            st.caption("  \n".join(f"{name}: {plain(value, 160)}" for name, value in facts))
        races = RaceStore().list()
        if not races:
            return
        st.markdown("**Earlier races**")
        with st.container(gap=None, key="recent"):
            for race in races[:LISTED]:
                st.page_link("pages/compare.py", label=_label(race), query_params={"race-id": race.id},
                             disabled=shown is not None and race.id == shown.id)
        if len(races) > LISTED:
            labels = {race.id: _label(race) for race in races[LISTED:]}
            st.selectbox("Older races", list(labels), index=None, key="race-older", on_change=_open_older,
                         placeholder=f"{len(labels)} older races", format_func=lambda race_id: labels.get(race_id, race_id),
                         label_visibility="collapsed")


def _facts(shown: RaceShown) -> list[tuple[str, str]]:
    info, unlike = shown.info, {mismatch.name for mismatch in shown.mismatches}
    sampling = info.get("sampling") if isinstance(info.get("sampling"), dict) else {}
    facts = [("Pair", str(info.get("pair") or ""), {"pair"}),
             ("Device", str(info.get("device") or ""), {"device"}),
             ("Number type", number_type_words(info), {"dtype"}),
             ("Temperature", f"{sampling['temperature']:g}" if isinstance(sampling.get("temperature"), int | float) else "", {"temperature"})]
    known = [(name, value) for name, value, of in facts if not of & unlike]
    measured = next((run.info["calibration"] for run in shown.runs if run.info.get("calibration")), None)
    return [*known, ("Calibration", calibration_words(measured))]


def _label(race: Race) -> str:
    done, decodes = finished_slots(race, manager().store), len(race.slots())
    view = manager().view(race.id)
    state = " (running)" if view is not None and not view.final else f" ({done} of {decodes})" if done < decodes else ""
    return f"{plain(when(race.created))}  {plain(race.prompt, 25) or 'untitled'}{plain(state)}"


def _open_older() -> None:
    if chosen := st.session_state.get("race-older"):
        if "race-runs" in st.query_params:
            del st.query_params["race-runs"]
        st.query_params["race-id"] = chosen
        st.session_state["race-older"] = None
