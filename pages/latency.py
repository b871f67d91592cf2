"""Latency: what verifying costs here, what was predicted, and whether that still holds."""

import streamlit as st

from bastion.analysis.drift import read_drift
from bastion.analysis.latency_known import known_calibrations
from bastion.jobs import manager
from bastion.jobs.calibrating import this_device
from bastion.jobs.offers import engine_missing
from pages.parts.latency_charts import calibration_charts
from pages.parts.latency_choice import choose_calibration, choose_view, notices, summaries_note
from pages.parts.latency_drift import drift_part
from pages.parts.latency_work import calibrate_here, take_finished
from pages.parts.pair import pair_chooser

take_finished()
missing = engine_missing()
choice = None if missing else pair_chooser()

st.title("Latency", anchor=False)
st.caption("How long the target takes to verify a tree on this device, measured and predicted. "
           "The prediction decides where a tree of the method bastion stops growing.")
if missing:
    st.info(f"Calibrations can be looked at here, not made. {missing}")
device = None
if not missing:
    with st.spinner("Looking at the device, a few seconds the first time"):
        device = this_device()
known = known_calibrations(manager().store, device=device or "")
notices(known)

if not known.found:
    st.subheader("Calibrate this device", anchor=False)
    st.markdown("Verifying trees of many sizes behind contexts of many lengths is timed, and a model with four "
                "parameters is fitted to it. Afterwards trees stop growing where the next node no longer pays on this device, and the charts here show what was "
                "measured, how far the prediction is off, and whether it drifts.")
    if choice is not None:
        calibrate_here(choice)
else:
    chosen = choose_calibration(known, device)
    if choice is not None:
        calibrate_here(choice)
    contexts, logarithmic = choose_view(chosen.calibration)
    drift = read_drift(manager().store, chosen.calibration)
    calibration_charts(chosen.calibration, contexts, logarithmic, drift)
    drift_part(chosen, drift, device)
summaries_note(known)
