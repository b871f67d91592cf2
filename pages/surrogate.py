"""Surrogate: how well the drafter's own estimate foretells what a step gives."""

import streamlit as st

from bastion.analysis.surrogate_evidence import without_repeats
from bastion.jobs import manager
from bastion.jobs.offers import engine_missing
from bastion.jobs.shown import recent
from pages.parts import surrogate_sections as sections
from pages.parts.surrogate_choice import asked_runs, candidates, choose_runs, filter_runs, judging, missing_line
from pages.parts.surrogate_data import read_runs, report, temperatures
from pages.parts.surrogate_temperature import temperature_section
from pages.parts.text import plain

st.title("Surrogate", anchor=False)
st.caption("Before a tree is verified, the drafter estimates the tokens it will give: S(n). Here that estimate is held against what came.")

NAMED = 4


def left_out_line(left_out: list[tuple[str, str]]) -> str:
    """Which runs are passed over and why, in one line."""
    named = "; ".join(f"{run_id}: {why}" for run_id, why in left_out[:NAMED])
    more = f"; and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
    return f"Left out: {named}{more}."


def empty() -> None:
    st.subheader("No run with a draft tree yet", anchor=False)
    st.markdown(engine_missing() or "Decode a prompt in Explore with bastion, ddtree or dflash, or run `python -m bastion generate --save "
                "--prompt \"Why is the sky blue?\"`. Every saved run can be judged here; runs of races and benchmarks too.")
    st.page_link("pages/explore.py", label="Open Explore")


def page() -> None:
    every = recent()
    runs = candidates(every)
    if missing := missing_line(asked_runs() or (), {run.id for run in every}, {run.id for run in runs}):
        st.info(plain(missing))
    if not runs:
        return empty()
    read = read_runs(choose_runs(runs))
    if read.left_out:
        st.caption(plain(left_out_line(read.left_out), 400))
    if not read.evidence:
        st.info("Choose at least one run that has draft trees.")
        return None
    evidence = filter_runs(read.evidence)
    if not evidence:
        st.info("No chosen run passes these filters: clear one of them.")
        return None
    evidence, repeats = without_repeats(evidence)
    how = judging(evidence)
    key = str(manager().store.root), tuple(one.run for one in evidence)
    found = report(*key, how.unit, how.outcome, how.with_cut, evidence)
    if found.frame.empty:
        st.info("All steps of these runs were cut: count cut steps to see them.")
        return None
    untraced = [one.run for one in evidence if not one.traced]
    notes = [f"Repeats left out: {repeats}, which gave step by step what another run of the same prompt and method gave."
             if repeats else "", f"Cut steps left out: {found.left_out}." if found.left_out else "",
             f"Runs without recorded marginals, which count for the correlation only: {len(untraced)}." if untraced else ""]
    sections.headline(found)
    if any(notes):
        st.caption(" ".join(filter(None, notes)))
    sections.scatter(found)
    sections.groups(found)
    sections.worst_steps(found)
    sections.reliability(found)
    sections.lengths(found)
    temperature_section(temperatures(*key, how.unit, how.with_cut, evidence), how.unit)
    return None


page()
