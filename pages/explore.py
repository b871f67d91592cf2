"""Explore: one prompt, every step."""

import streamlit as st

from bastion.errors import UserError
from bastion.jobs.offers import engine_missing
from bastion.jobs.shown import show
from pages.parts.faithfulness_panel import faithfulness_panel
from pages.parts.fetch import model_at_hand
from pages.parts.form import prompt_form
from pages.parts.live import live_area
from pages.parts.pair import pair_chooser, preset_choice
from pages.parts.sidebar import sidebar
from pages.parts.text import plain

returning = not st.query_params and bool(st.session_state.get("explored"))
if returning:   # from another page of this session
    st.query_params.from_dict(st.session_state["explored"])
run_id = st.query_params.get("run")
problem = ""
try:
    shown = show(run_id) if run_id else None
except UserError as error:
    shown, problem = None, str(error)
    if returning:   # it was deleted meanwhile
        problem = ""
        st.query_params.clear()
st.session_state["explored"] = st.query_params.to_dict()

missing = engine_missing()
choice = None if missing else pair_chooser(shown.id, preset_choice(shown.info)) if shown else pair_chooser()
sidebar(shown)
if missing:
    st.info(missing)
ready = choice is not None and model_at_hand(choice)
prompt_form(shown, engine=ready)

if problem:
    st.error(plain(problem))
elif shown is None:
    st.subheader("Type a prompt and press Decode, or start from an example", anchor=False)
    st.markdown("Each step of the decode is drawn as it happens: the tree that the drafter proposed, why it stopped "
                "growing, what the target accepted, and what that cost. Finished runs are kept; their link opens "
                "them again.")
else:
    live_area(shown.id, shown)
    faithfulness_panel(shown)
