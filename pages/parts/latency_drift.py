"""Drift since a calibration: what real runs took against what it predicted for them, and one run step by step."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from bastion.analysis import latency_table
from bastion.analysis.drift import Drift
from bastion.analysis.latency_known import KnownCalibration
from bastion.errors import UserError
from bastion.figures.charts import latency_figure
from bastion.figures.glossary import GLOSSARY
from bastion.figures.latency_drift import drift_figure, drift_table
from bastion.figures.latency_words import rule, verdict_words
from bastion.jobs import FINAL, manager
from bastion.jobs.calibrating import JOB_ID, CalibrationRequest, choice_for, preset_of
from bastion.latency import Calibration
from bastion.records import Run
from pages.parts.chart import chart, dark
from pages.parts.latency_work import start
from pages.parts.text import plain

RUN = "latency-run"


def drift_part(known: KnownCalibration, drift: Drift, device: str | None) -> None:
    """Verdict, chart over time, a button to measure again, and one run chosen."""
    calibration = known.calibration
    st.subheader("Drift since this calibration", anchor=False, help=GLOSSARY["drift"])
    with st.container(key="latency-verdict"):
        st.markdown(f"**{verdict_words(drift)}**")
    st.caption(rule() + _left_out(drift))
    _recalibrate(known, device)
    if not drift.runs:
        st.caption("Decode a prompt in Explore: every run whose steps this calibration predicted appears here.")
        return
    chart(drift_figure(drift, calibration, dark()), drift_table(drift), "latency-drift")
    _one_run(drift)


def _recalibrate(known: KnownCalibration, device: str | None) -> None:
    if known.path is None or known.calibration.device_key != device or preset_of(known.calibration) is None:
        return   # measured elsewhere, or of a pair whose place is not known here
    job = manager().view(JOB_ID)
    st.button("Recalibrate", key="latency-again", on_click=_again, args=(known.calibration,),
              disabled=job is not None and job.state not in FINAL, help="Measures this pair again, quick, and replaces what is stored.")


def _again(calibration: Calibration) -> None:
    start(CalibrationRequest(choice_for(calibration)))


def _one_run(drift: Drift) -> None:
    runs = {run.run_id: f"{run.run_id}, {run.method}, {run.steps} steps" for run in reversed(drift.runs)}
    if st.session_state.get(RUN) not in runs:
        st.session_state.pop(RUN, None)
    picked = st.selectbox("Predicted and measured in one run", list(runs), format_func=runs.get, key=RUN, bind="query-params")
    try:
        run = manager().store.open(picked)
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.caption(f"{plain(str(run.info['title']), 80) or 'untitled'}")
    chart(latency_figure(run.steps, dark()), _step_table(run), "latency-run-steps")
    st.page_link("pages/explore.py", label="Open this run in Explore", query_params={"run": picked})


def _step_table(run: Run) -> pd.DataFrame:
    table = latency_table(run.steps)
    return pd.DataFrame({"step": table.step, "nodes": table.nodes, "context": table.context,
                         "predicted_seconds": table.predicted, "measured_seconds": table.measured})


def _left_out(drift: Drift) -> str:
    words = ""
    if drift.unread:
        words += f" {drift.unread} run{'s' * (drift.unread != 1)} could not be opened."
    if drift.older:
        words += f" {drift.older} older runs were not looked at."
    return words
