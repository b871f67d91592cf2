"""BASTION Studio: `streamlit run app.py`. Pages that are not built are not listed."""

import streamlit as st

st.set_page_config(
    page_title="BASTION Studio",
    layout="wide",
    initial_sidebar_state="auto",
    menu_items={"About": "Speculative decoding with draft trees, every step on show."},
)

# Streamlit's own running sign says neither what it waits for nor for how long, and its "Stop" stands
# beside the Stop of a decode and does something else; that the server is gone it must say, in words.
# A bar that glides is drawn sixty times a second, on the processor that decodes.
# Links to runs are links within one page, so the mark of the current page would stand on all of them.
st.html("""<style>
[data-testid=stStatusWidget]:not(:has([data-testid=stConnectionStatus])), [data-testid=stHeader] [kind=header] {display: none}
[data-testid=stConnectionStatus] {display: block; visibility: hidden; width: 0; white-space: nowrap}
[data-testid=stConnectionStatus] * {display: none}
[data-testid=stConnectionStatus]::after {
  content: "The server does not answer. Start it again: what was finished is kept, and this page goes on.";
  position: fixed; top: 0.75rem; left: 50%; transform: translateX(-50%); padding: 0.4rem 0.9rem; max-width: 92vw;
  white-space: normal; background: #D55E00; color: #ffffff; font-size: 0.9rem; z-index: 1000000;
  visibility: hidden; animation: bastion-gone 0s 4s forwards}
@keyframes bastion-gone {to {visibility: visible}}
.st-key-status [data-testid=stProgress] * {transition: none !important; animation: none !important}
.st-key-runs-show button {min-height: 2.5rem}
.st-key-recent a {background: transparent; padding: 0.1rem 0}
.st-key-recent a:hover {text-decoration: underline}
.st-key-recent a span, .st-key-recent a p {font-weight: 400; font-size: 0.9rem}
</style>""")

def explore_by_its_name() -> None:
    """Explore is the first page and has no name in its address; one that was typed with it leads there."""
    st.switch_page("pages/explore.py", query_params=st.query_params.to_dict())


page = st.navigation({"BASTION Studio": [
    st.Page("pages/explore.py", title="Explore", url_path="start", default=True),
    st.Page(explore_by_its_name, title="Explore", url_path="explore", visibility="hidden"),
    st.Page("pages/compare.py", title="Compare", url_path="compare"),
    st.Page("pages/surrogate.py", title="Surrogate", url_path="surrogate"),
    st.Page("pages/latency.py", title="Latency", url_path="latency"),
    st.Page("pages/benchmark.py", title="Benchmark", url_path="benchmark"),
    st.Page("pages/runs.py", title="Runs", url_path="runs"),
    st.Page("pages/doctor.py", title="Doctor", url_path="doctor"),
    st.Page("pages/terms.py", title="Terms", url_path="terms"),
]})
page.run()
