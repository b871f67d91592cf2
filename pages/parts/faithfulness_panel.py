"""Whether a finished run followed the target: total variation by step, and entropies so far."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from bastion.analysis.faithfulness import lossy_rule, run_faithfulness
from bastion.figures.faithfulness import surprise_figure, variation_figure
from bastion.figures.glossary import GLOSSARY
from bastion.jobs.shown import Shown
from pages.parts.chart import chart, dark
from pages.parts.text import plain


def faithfulness_panel(shown: Shown) -> None:
    """Nothing while the run is decoded; at temperature 0 one line, since all rules agree there."""
    sampling = shown.info.get("sampling")
    temperature = sampling.get("temperature") if isinstance(sampling, dict) else None
    if not shown.final or not shown.steps or not isinstance(temperature, int | float):
        return
    if temperature == 0:
        st.caption("Temperature 0: every acceptance rule keeps the target's most probable token, so there are no distributions to compare.")
        return
    st.subheader("Does the output follow the target?", anchor=False, help=" ".join(
        (GLOSSARY["acceptance rule"], GLOSSARY["total variation"], GLOSSARY["entropy"])))
    found = run_faithfulness(shown.steps)
    if found is None:
        st.caption("Nothing was recorded of it: rules for drawn trees follow the target over all draws of a tree, not tree by tree, "
                   "and older runs did not record it.")
        return
    if rule := lossy_rule(shown.info):
        st.caption(f"Made with {plain(rule)}, which is not lossless: where a drafted child carries the target's most probable token, that token "
                   "is kept for certain. Decode again with the rule walk to compare.")
    chart(variation_figure(found, dark()), pd.DataFrame({"step": found.step, "variation": found.variation,
                                                        "mean_so_far": found.mean_variation}), "faithfulness-variation")
    chart(surprise_figure(found, dark()), pd.DataFrame({"step": found.step, "surprise": found.surprise, "rule_entropy": found.rule_entropy,
                                                       "target_entropy": found.target_entropy}), "faithfulness-surprise")
