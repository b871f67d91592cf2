"""One calibration drawn: errors, verify time by nodes, the formula, the crossover, residuals."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from bastion.analysis.drift import Drift
from bastion.analysis.latency_estimators import crossovers, estimator_errors, reduction
from bastion.figures import numbers
from bastion.figures.glossary import GLOSSARY
from bastion.figures.latency import residual_figure, residual_table, verify_figure, verify_table
from bastion.figures.latency_errors import error_figure, error_table
from bastion.figures.latency_words import FORMULA, crossover_words, formula_with_numbers, parameter_table
from bastion.latency import Calibration
from pages.parts.chart import chart, dark


def calibration_charts(calibration: Calibration, contexts: Sequence[int], logarithmic: bool, drift: Drift) -> None:
    """Everything that the calibration alone tells, and in one word how it holds."""
    _numbers(calibration, drift)
    chart(verify_figure(calibration, contexts, logarithmic, dark()), verify_table(calibration, contexts), "latency-verify")
    _crossover(calibration)
    _formula(calibration)
    st.subheader("How far off", anchor=False, help=GLOSSARY["held out"])
    chart(error_figure(calibration, dark()), error_table(calibration), "latency-errors")
    chart(residual_figure(calibration, contexts, dark()), residual_table(calibration, contexts), "latency-residuals")


def _numbers(calibration: Calibration, drift: Drift) -> None:
    rmse = {error.estimator: error.rmse for error in estimator_errors(calibration)}
    share = reduction(rmse["raw"], rmse["roofline"])
    state = {"unknown": numbers.NONE}.get(drift.verdict.state, drift.verdict.state)
    with st.container(horizontal=True, key="latency-numbers", gap="medium"):
        for label, value, words in (
                ("RMSE, calibrated", numbers.seconds(rmse["roofline"]), GLOSSARY["RMSE"] + " On held-out probes."),
                ("RMSE, raw", numbers.seconds(rmse["raw"]), GLOSSARY["raw roofline"]),
                ("Added" if share is not None and share < 0 else "Taken off", numbers.percent(share and abs(share)),
                 "RMSE that calibrating took off the raw roofline's, or added to it where the fit went wrong. Published: 87 to 92 % less."),
                ("Drift", state, GLOSSARY["drift"])):
            st.metric(label, value, help=words, width="content")
    if all(value is None for value in rmse.values()):
        st.caption("No probe was held out from this fit, so there is no error to show.")


def _crossover(calibration: Calibration) -> None:
    st.subheader("Where compute overtakes memory", anchor=False, help=GLOSSARY["crossover"])
    rows = zip(crossovers(calibration), crossovers(calibration, "raw"), strict=True)
    table = pd.DataFrame([(numbers.count(fitted.context), crossover_words(fitted), crossover_words(raw)) for fitted, raw in rows],
                         columns=["context", "calibrated", "raw"])
    with st.container(key="latency-crossover"):
        st.table(table, border="horizontal", hide_index=True)
    st.caption("Predicted: the smallest tree whose arithmetic takes longer than its reading. Up to there a further node is nearly free.")


def _formula(calibration: Calibration) -> None:
    st.subheader("The model", anchor=False, help=GLOSSARY["roofline"])
    with st.container(key="latency-formula"):
        st.latex(FORMULA)
        st.latex(formula_with_numbers(calibration))
    st.caption(f"Predicted seconds to verify n nodes behind c tokens: the longer of the memory branch, above, and the compute branch. Bytes and FLOPs are counted from the target's shape. The device's peaks are "
               f"{calibration.peaks_source}. An α and the β of its branch trade off against each other: compare predictions, not parameters.")
    with st.container(key="latency-parameters"):
        st.table(parameter_table(calibration), border="horizontal", hide_index=True)
