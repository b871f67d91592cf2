"""What a race found: the replay, the table, where texts differ, and the way to every run."""

from __future__ import annotations

import streamlit as st

from bastion.analysis.race import race_frame
from bastion.analysis.race_lanes import YARDSTICK, mismatch_words
from bastion.figures.glossary import GLOSSARY
from bastion.figures.race_table import difference_words, race_html
from bastion.jobs.race_shown import RaceShown
from pages.parts.chart import dark
from pages.parts.race_replay import race_replay
from pages.parts.text import plain


def race_result(shown: RaceShown) -> None:
    if shown.mismatches:
        st.warning("These runs are not alike, so their numbers compare only with care. "
                   + " ".join(plain(mismatch_words(mismatch)) for mismatch in shown.mismatches))
    race_replay(shown)
    _table(shown)
    _differences(shown)
    _runs(shown)


def _table(shown: RaceShown) -> None:
    head = st.container(horizontal=True, vertical_alignment="bottom")
    head.subheader("What it came to", anchor="race-table", help=GLOSSARY["step time"])
    head.download_button("CSV", data=lambda: race_frame(shown.rows).to_csv(index=False).encode(), file_name="bastion-race.csv",
                         mime="text/csv", key="race-csv", type="tertiary", on_click="ignore", help="This table at full precision, times in seconds")
    st.html(race_html(shown.rows, shown.greedy, dark()))
    words = "Measured. Medians over the repeats; the range under them in grey. Times are means a step of a repeat; tokens/s leave the prefill out."
    if shown.race is not None:
        words += f" The order was shuffled for every repeat (seed {shown.race.order_seed}); each method was warmed up first, not counted."
    if shown.median_yardstick:
        words += " Speedups are against the median of plain decoding's runs: not every repeat has one of its own."
    st.caption(words)


def _differences(shown: RaceShown) -> None:
    if not shown.greedy:
        st.caption("Above temperature 0 tokens are drawn: the texts are expected to differ, and only their distribution must agree.")
        return
    found = [words for row in shown.rows if (words := difference_words(row))]
    judged = [row for row in shown.rows if row.identical is not None and row.method != YARDSTICK]
    cut = [plain(row.label) for row in shown.rows if not row.repeats]
    if found:
        st.subheader("Where the texts differ", anchor=False, help=GLOSSARY["top-2 gap"])
        for words in found:
            st.markdown(plain(words))
    elif judged:
        which = "All texts are" if not cut else "All whole texts are"
        st.caption(f"{which} the same as plain decoding's, token for token.")
    if cut:
        st.caption(f"No whole repeat yet, so not judged: {', '.join(cut)}.")


def _runs(shown: RaceShown) -> None:
    with st.expander("Every run of this race in Explore" if shown.race else "These runs in Explore"):
        columns = st.columns(min(max(len(shown.lanes), 1), 4))
        for place, lane in enumerate(shown.lanes):
            with columns[place % len(columns)].container(gap=None, key=f"race-runs-{place}"):
                st.caption(plain(lane.label, 60))
                for run, repeat in zip(lane.runs, lane.repeats, strict=True):
                    speed = run.info["totals"].get("tokens_per_second")
                    order = (run.info.get("group") or {}).get("order")
                    label = f"Repeat {repeat}" + (f", {_ordinal(order)} in order" if isinstance(order, int) and shown.race else "")
                    st.page_link("pages/explore.py", label=label if speed else f"{label}, no step", query_params={"run": run.id})


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
