"""A chart at rest: the plotly figure, and under it its data as CSV, its drawing as SVG and PNG, and a link to it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bastion.figures.chart_tools import CSS, HTML, JS, NAME

_tools = st.components.v2.component(NAME, html=HTML, css=CSS, js=JS)


def dark() -> bool:
    """Whether the reader's browser shows the dark theme; light until it has said so."""
    return st.context.theme.type == "dark"


def chart(figure: go.Figure, table: pd.DataFrame, name: str, **options: Any) -> Any:
    """Draw `figure`; `table` is what is drawn, for the CSV, at full precision. Returns what `st.plotly_chart`
    does (a selection with `on_select="rerun"` in `options`). `name` is unique on its page, letters and hyphens:
    it names the downloads, the anchor of the link, and the container `st-key-chart-NAME` for tests."""
    with st.container(key=f"chart-{name}", gap=None):
        event = st.plotly_chart(figure, key=f"plot-{name}", theme=None, width="stretch",
                                config={"displayModeBar": False, "displaylogo": False}, **options)
        row = st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small")
        row.download_button("CSV", data=lambda: table.to_csv(index=False).encode(), file_name=f"bastion-{name}.csv",
                            mime="text/csv", key=f"csv-{name}", type="tertiary", on_click="ignore",
                            help="The numbers of this chart, at full precision")
        with row.container(width=136):
            _tools(key=f"tools-{name}", data={"name": name})
    return event
