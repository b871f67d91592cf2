"""BASTION Studio: `streamlit run app.py`. Pages that are not built are not listed."""

import streamlit as st

st.set_page_config(
    page_title="BASTION Studio",
    layout="wide",
    initial_sidebar_state="auto",
    menu_items={"About": "Speculative decoding with draft trees, every step on show."},
)

page = st.navigation({"BASTION Studio": [
    st.Page("pages/explore.py", title="Explore", url_path="explore", default=True),
    st.Page("pages/terms.py", title="Terms", url_path="terms"),
]})
page.run()
