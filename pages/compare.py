"""Compare: one prompt, several methods, side by side at the pace that was measured."""

import streamlit as st

from bastion.errors import UserError
from bastion.jobs.offers import engine_missing
from bastion.jobs.race_shown import show_race, show_runs
from pages.parts.fetch import model_at_hand
from pages.parts.pair import pair_chooser, saved_choice
from pages.parts.race_form import race_form
from pages.parts.race_live import race_area
from pages.parts.race_sidebar import race_sidebar
from pages.parts.text import plain

RUNS_AT_MOST = 24

st.title("Compare", anchor=False)
st.caption("The same prompt, decoded by several methods in turn: who is faster, by how much, and do they say the same?")

asked = {"race-id": st.query_params.get("race-id", ""), "race-runs": st.query_params.get_all("race-runs")}
returning = not any(asked.values()) and "raced" in st.session_state   # from another page of this session
if returning:
    asked = st.session_state["raced"]
    for name, value in asked.items():
        if value:
            st.query_params[name] = value
st.session_state["raced"] = asked

shown, problem = None, ""
try:
    if asked["race-runs"]:
        shown = show_runs(asked["race-runs"][:RUNS_AT_MOST])
        if len(asked["race-runs"]) > RUNS_AT_MOST:
            problem = f"{RUNS_AT_MOST} runs at most are compared; the rest of the {len(asked['race-runs'])} is left out."
    elif asked["race-id"]:
        shown = show_race(asked["race-id"])
except UserError as error:
    problem = str(error)
    if returning:   # it was deleted meanwhile
        problem = ""
        st.session_state.pop("raced")
        st.query_params.pop("race-id", None)

missing = engine_missing()
choice = None
if not missing:
    race = shown.race if shown is not None else None
    choice = pair_chooser(race.id, saved_choice(race.pair)) if race is not None else pair_chooser()
race_sidebar(shown)
if missing:
    st.info(missing)
ready = choice is not None and model_at_hand(choice)
form = st.container()   # filled last: a saved race is there before the engine has started

if problem:
    st.error(plain(problem))
if shown is None and not problem:
    st.subheader("Type a prompt, choose the methods, and press Start", anchor=False)
    st.markdown("The methods decode the prompt one after another, in an order that is shuffled and repeated, so that a machine "
                "that slows down does so for all. Then the race is replayed at the measured pace. Saved runs can be raced too: "
                "mark them on the Runs page.")
elif shown is not None:
    race_area(shown, ready)
if not missing:
    with form:
        race_form(shown, ready)
