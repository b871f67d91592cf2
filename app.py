"""BASTION Studio: `streamlit run app.py`. Pages that are not built are not listed."""

import streamlit as st

st.set_page_config(
    page_title="BASTION Studio",
    layout="wide",
    initial_sidebar_state="auto",
    menu_items={"About": "Speculative decoding with draft trees, every step on show."},
)

# Streamlit's own running sign says neither what it waits for nor for how long, and its "Stop" stands
# beside the Stop of a decode and does something else.
st.html("<style>[data-testid=stStatusWidget], [data-testid=stHeader] [kind=header] {display: none}</style>")

page = st.navigation({"BASTION Studio": [
    st.Page("pages/explore.py", title="Explore", url_path="explore", default=True),
    st.Page("pages/terms.py", title="Terms", url_path="terms"),
]})
page.run()
