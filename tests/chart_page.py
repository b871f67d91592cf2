"""A page with one chart, for the test of what stands under it."""

import pandas as pd
import streamlit as st

from bastion.figures.frame import house_figure
from pages.parts.chart import chart, dark

st.set_page_config(layout="wide")
st.html("<div style='height:1500px'></div>")
table = pd.DataFrame({"step": [1, 2, 3], "ms": [0.1 + 0.2, 2.0, 1 / 3]})
figure = house_figure("What it cost <b>", "Measured.", "step", "ms", dark())
figure.add_scatter(x=table["step"], y=table["ms"], mode="lines+markers")
chart(figure, table, "cost")
st.text_input("Choice", key="choice", bind="query-params")
