"""The doctor's report on the page: what was found, a chart of every change, and the table."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from bastion.figures import doctor_words as words
from bastion.figures.doctor_chart import doctor_figure, doctor_table
from pages.parts.chart import chart, dark
from pages.parts.text import plain


def report_part(report: dict[str, Any]) -> None:
    st.subheader(plain(words.headline(report)), anchor=False)
    for place, finding in enumerate(report["findings"], start=1):
        st.markdown(f"{place}. {plain(words.finding(finding))}")
    chart(doctor_figure(report, dark()), doctor_table(report), "doctor")
    table = pd.DataFrame(words.rows(report), columns=list(words.HEADER))
    table["what to do if it helps"] = [one["todo"] for one in report["tried"]]
    st.dataframe(table, hide_index=True, key="doctor-table")
    for name, reason in report["not_tested"].items():
        st.caption(plain(f"Not tested: {name}. {reason}"))
    st.caption(plain(words.method(report)))
