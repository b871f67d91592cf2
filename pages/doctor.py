"""Doctor: why acceptance is low. One suspected fault after another is undone on the live pair, and tau measured."""

import streamlit as st

from bastion.figures.glossary import define
from bastion.jobs import manager
from bastion.jobs.doctoring import JOB_ID
from bastion.jobs.offers import engine_missing
from pages.parts.doctor_report import report_part
from pages.parts.doctor_work import examine_here
from pages.parts.pair import pair_chooser

missing = engine_missing()
view = manager().view(JOB_ID)
report = view.info.get("report") if view is not None else None

st.title("Doctor", anchor=False, help=define("doctor"))
st.caption("Why acceptance is low: each fault that is often made is undone on the live pair, and tau measured with and without it.")
if missing:
    st.info(f"A pair cannot be examined here. {missing}")
else:
    examine_here(pair_chooser())
if report:
    report_part(report)
elif not missing:
    st.markdown("Press Examine: the target answers some questions, and the drafter is judged at every position of the answers, as "
                "loaded and with one thing changed at a time. What raises tau is a fault, and the report says which setting to change.")
