"""What the Latency page shows: which calibration, which contexts, which axes. All of it is in the address."""

from __future__ import annotations

import streamlit as st

from bastion.analysis.latency_known import Known, KnownCalibration
from bastion.figures.latency_words import labels
from bastion.figures.numbers import count
from bastion.latency import Calibration
from pages.parts.text import plain

CHOICE, CONTEXTS, AXES = "latency-calibration", "latency-contexts", "latency-axes"
DRAWN, LOST = "latency-drawn", "latency-lost"
LOG, LINEAR = "log", "linear"
MOST_NOTICES = 4


def notices(known: Known) -> None:
    """A line for each calibration that cannot be read."""
    for sentence in known.damaged[:MOST_NOTICES]:
        st.warning(plain(sentence))
    if len(known.damaged) > MOST_NOTICES:
        st.warning(f"{len(known.damaged) - MOST_NOTICES} more calibrations cannot be read.")


def summaries_note(known: Known) -> None:
    """What is missing from runs of older versions."""
    if known.summaries:
        one = len(known.summaries) == 1
        st.caption(f"{len(known.summaries)} saved {'run holds' if one else 'runs hold'} only a summary of the calibration, as older "
                   "versions wrote it: probes, peaks and the roofline's parameters are missing, so it is not listed here.")


def choose_calibration(known: Known, device: str | None) -> KnownCalibration:
    """The one that the address or the reader names, else the newest of this device. Its name stays in the address, so that
    the link shows the same one tomorrow, when there is a newer."""
    by_id = {one.id: one for one in known.found}
    names = labels([one.calibration for one in known.found])
    state, newest = st.session_state, known.newest(device).id
    if state.get(CHOICE) not in by_id:
        linked = st.query_params.get(CHOICE)
        state[CHOICE] = next((key for key, name in names.items() if name == linked), newest)
        state[LOST] = bool(linked) and names[state[CHOICE]] != linked
    if not state.get(DRAWN) and names[state[CHOICE]] != st.query_params.get(CHOICE):
        st.query_params[CHOICE] = names[state[CHOICE]]   # a widget's first value does not reach the address by itself
    state[DRAWN] = True
    picked = st.selectbox("Calibration", list(by_id), index=None, format_func=names.get, key=CHOICE, bind="query-params",
                          on_change=_chosen, help="Those stored on this machine, those that saved runs carry, and profiles shipped for this device.")
    if state.get(LOST):
        st.info("The calibration of this address is not here, or was measured again since; the newest of this device is shown.")
    chosen = by_id[picked or newest]
    st.caption(_origin(chosen))
    return chosen


def choose_view(calibration: Calibration) -> tuple[list[int], bool]:
    """The contexts to draw, ascending, all of them when none is picked; whether axes are logarithmic."""
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="medium")
    with row:
        picked = st.pills("Contexts, tokens", calibration.contexts, selection_mode="multi", default=calibration.contexts,
                          format_func=count, key=CONTEXTS, bind="query-params")
        axes = st.segmented_control("Axes", [LOG, LINEAR], default=LOG, required=True, key=AXES, bind="query-params")
    return sorted(picked) or calibration.contexts, axes != LINEAR


def _chosen() -> None:
    """Another calibration probed other contexts: begin with all of them."""
    st.session_state.pop(CONTEXTS, None)
    st.session_state[LOST] = False


def _origin(known: KnownCalibration) -> str:
    calibration = known.calibration
    where = ("stored on this machine" if known.path is not None
             else "shipped with BASTION Studio: measured elsewhere on a device of this name, and used while none is made here"
             if calibration.shipped else f"carried by {len(known.runs)} saved run{'s' * (len(known.runs) != 1)}, not stored on this machine")
    held_out = sum(calibration.held_out)
    parts = (f"Drafter {plain(calibration.drafter, 60) or 'none'}", f"{plain(calibration.attention, 30)} attention",
             f"{len(calibration.probes)} probes up to {calibration.max_probed_nodes} nodes, {held_out} held out from the fit", where)
    return ", ".join(parts) + "."
