"""BASTION Studio: `streamlit run app.py`. Pages that are not built are not listed."""

import streamlit as st

st.set_page_config(
    page_title="BASTION Studio",
    layout="wide",
    initial_sidebar_state="auto",
    menu_items={"About": "Speculative decoding with draft trees, every step on show."},
)

# Streamlit's own running sign says neither what it waits for nor for how long, and its "Stop" stands
# beside the Stop of a decode and does something else. Links to runs are links within one page, so
# the mark of the current page would stand on all of them.
st.html("""<style>
[data-testid=stStatusWidget], [data-testid=stHeader] [kind=header] {display: none}
.st-key-recent a {background: transparent; padding: 0.1rem 0}
.st-key-recent a:hover {text-decoration: underline}
.st-key-recent a span, .st-key-recent a p {font-weight: 400; font-size: 0.9rem}
</style>""")

page = st.navigation({"BASTION Studio": [
    st.Page("pages/explore.py", title="Explore", url_path="explore", default=True),
    st.Page("pages/compare.py", title="Compare", url_path="compare"),
    st.Page("pages/surrogate.py", title="Surrogate", url_path="surrogate"),
    st.Page("pages/latency.py", title="Latency", url_path="latency"),
    st.Page("pages/benchmark.py", title="Benchmark", url_path="benchmark"),
    st.Page("pages/runs.py", title="Runs", url_path="runs"),
    st.Page("pages/doctor.py", title="Doctor", url_path="doctor"),
    st.Page("pages/terms.py", title="Terms", url_path="terms"),
]})
page.run()
