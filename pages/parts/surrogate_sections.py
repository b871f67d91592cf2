"""The sections of the Surrogate page about what was measured."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from bastion.analysis.reliability import outcome_frame, reliability_frame
from bastion.analysis.surrogate_correlation import Correlation, Estimate
from bastion.analysis.surrogate_groups import GROUPINGS, grouped
from bastion.analysis.surrogate_report import SurrogateReport, Unit, resampled_words
from bastion.analysis.surrogate_table import worst
from bastion.figures import numbers
from bastion.figures.glossary import GLOSSARY
from bastion.figures.surrogate_lengths import groups_figure, lengths_figure
from bastion.figures.surrogate_reliability import agreement_figure, agreement_frame, finding, reliability_figure
from bastion.figures.surrogate_scatter import correlation_figure, scatter_figure, within
from pages.parts.chart import chart, dark
from pages.parts.text import plain

WORST = 8
METRIC_WIDTH = 176  # pixels: five in a row on a wide page, wrapped on a narrow one


def headline(report: SurrogateReport) -> None:
    """The five numbers of the page."""
    found, first = report.correlation, report.first_choice
    cells = (
        ("Steps", numbers.count(len(report.frame)), f"of {numbers.counted(report.frame['run'].nunique(), 'run')}", GLOSSARY["surrogate"]),
        ("Pearson", _correlation(found and found.pearson), _interval(found and found.pearson, found, report.unit), GLOSSARY["Pearson"]),
        ("Spearman", _correlation(found and found.spearman), _interval(found and found.spearman, found, report.unit), GLOSSARY["Spearman"]),
        ("Bias", _signed(report.bias), "tokens a step", "Mean of S(n) minus the outcome: above 0 the drafter promises too much."),
        (
            "Calibration error",
            numbers.significant(first.error, 2),
            f"{numbers.count(first.total)} first choices",
            GLOSSARY["calibration error"],
        ),
    )
    row = st.container(horizontal=True, gap="medium")
    for label, value, note, words in cells:
        with row.container(gap=None, width=METRIC_WIDTH):
            st.metric(label, value, help=words)
            st.caption(note)


def scatter(report: SurrogateReport) -> None:
    st.subheader("Does the surrogate know what a step will give?", anchor=False, help=GLOSSARY["surrogate"])
    frame = report.frame
    chart(scatter_figure(frame, report.correlation, report.outcome, dark()), frame, "surrogate-scatter")
    if report.correlation is None:
        st.caption("Too few steps, or all of them alike: there is no correlation to give.")
        return
    found = report.correlation
    note = resampled_words(found, report.unit)
    if not found.too_few:
        note += f"; {numbers.count(found.resamples)} resamples of {numbers.count(found.clusters)}"
    table = pd.DataFrame(
        [
            {
                "kind": kind,
                "value": e.value,
                "low": e.low,
                "high": e.high,
                "steps": found.steps,
                "unit": report.unit,
                "clusters": found.clusters,
                "resamples": found.resamples,
            }
            for kind, e in (("pearson", found.pearson), ("spearman", found.spearman))
        ]
    )
    chart(correlation_figure([("these steps", found)], note, dark()), table, "surrogate-correlation")


def reliability(report: SurrogateReport) -> None:
    st.subheader("Does the drafter mean what it says?", anchor=False, help=GLOSSARY["calibration error"])
    if not report.depths:
        st.caption("None of these runs recorded what the drafter thought, so there is nothing to compare. Runs that the app decodes do.")
        return
    first, every = report.first_choice, report.all_ranks
    st.caption(
        f"Expected calibration error: {len(first.count)} bins of equal width, weighted by their counts. First choices "
        f"{numbers.significant(first.error, 2)}; all recorded ranks together {numbers.significant(every.error, 2)}, most of them near 0. "
        "Above temperature 0 the target's token is a draw from it."
    )
    name, tables = (
        st.segmented_control(
            "By",
            ["depth", "rank"],
            default="depth",
            key="surrogate-reliability",
            bind="query-params",
            required=True,
            format_func=lambda by: f"by {by}",
        ),
        (report.depths, report.ranks),
    )
    by, shown = ("rank", tables[1]) if name == "rank" else ("depth", tables[0])
    # The ranks far down are all said to be near 0: a diagram of one point shows nothing.
    diagrams = {name: t for name, t in shown.items() if (t.count > 0).sum() > 1} or shown if by == "rank" else report.depths_all
    title = finding(first)
    chart(
        agreement_figure(shown, by, title if by == "depth" else "How often the target takes each rank", dark(), by == "rank"),
        agreement_frame(shown, by),
        f"surrogate-agreement-{by}",
    )
    chart(
        reliability_figure(
            diagrams, by, f"Reliability by {by}" + (", all recorded ranks" if by == "depth" else ", all reached depths"), dark()
        ),
        reliability_frame(diagrams, by),
        f"surrogate-reliability-{by}",
    )
    st.download_button(
        "All outcomes, CSV",
        data=lambda: outcome_frame(report.seen, _all_steps(report)).to_csv(index=False).encode(),
        file_name="bastion-surrogate-outcomes.csv",
        mime="text/csv",
        type="tertiary",
        on_click="ignore",
        key="surrogate-outcomes",
        help="One row per reached depth and recorded rank, at full precision: large for many runs.",
    )


def lengths(report: SurrogateReport) -> None:
    st.subheader("What does the drafter's depth cut off?", anchor=False, help=GLOSSARY["depth limit"])
    found = report.clipping
    table = pd.DataFrame({"length": found.length, "ended": found.ended, "clipped": found.clipped})
    chart(lengths_figure(found, dark()), table, "surrogate-lengths")
    if found.clipped_steps:
        st.caption(
            f"Estimated by geometric continuation: of {numbers.count(found.reached)} steps that came within one of the drafter's depth, "
            f"{numbers.percent(found.rate)} took the last token too; each clipped path is taken to go on at that rate. "
            "Agreement falls with depth "
            "and the rate counts what the tree held, so this leans high."
        )


def groups(report: SurrogateReport) -> None:
    st.subheader("Where is it right, and where not?", anchor=False)
    by = (
        st.segmented_control(
            "Group steps by",
            list(GROUPINGS),
            default="method",
            key="surrogate-by",
            bind="query-params",
            required=True,
            format_func=GROUPINGS.get,
        )
        or "method"
    )
    table = grouped(report.frame, report.seen, by, report.outcome)
    if len(table) <= 12:
        chart(groups_figure(table, GROUPINGS[by], report.outcome, dark()), table, "surrogate-groups")
    mean = f"mean_{report.outcome}"
    st.dataframe(
        table,
        hide_index=True,
        width="stretch",
        key="surrogate-group-table",
        column_config={
            "group": GROUPINGS[by],
            "steps": st.column_config.NumberColumn("steps"),
            "mean_surrogate": st.column_config.NumberColumn("mean S(n)", format="%.2f", help=GLOSSARY["surrogate"]),
            mean: st.column_config.NumberColumn(f"mean {report.outcome}", format="%.2f"),
            "bias": st.column_config.NumberColumn("bias", format="%+.2f", help="Mean of S(n) minus the outcome, tokens a step"),
            "pearson": st.column_config.NumberColumn("Pearson", format="%.2f", help=GLOSSARY["Pearson"]),
            "spearman": st.column_config.NumberColumn("Spearman", format="%.2f", help=GLOSSARY["Spearman"]),
            "ece": st.column_config.NumberColumn("calibration error", format="%.3f", help=GLOSSARY["calibration error"]),
        },
    )


def worst_steps(report: SurrogateReport) -> None:
    """Both ends of the error, each row a link to its step in Explore."""
    st.subheader(
        "Where it was most wrong", anchor=False, help="S(n) minus the accepted path, in tokens. A link opens the step in Explore."
    )
    st.html("""<style>.st-key-surrogate-over a, .st-key-surrogate-under a {padding: 0.1rem 0; background: transparent}
[class*=st-key-surrogate-] a p {text-decoration: underline; text-underline-offset: 3px; text-decoration-thickness: 1px}
.st-key-surrogate-over p, .st-key-surrogate-under p {
  font-size: 0.9rem; white-space: nowrap; overflow: hidden; text-overflow: ellipsis}</style>""")
    over, under = worst(report.frame, WORST)
    for words, rows, name in (("Promised most too much", over, "over"), ("Promised most too little", under, "under")):
        with st.container(key=f"surrogate-{name}", gap=None):
            st.markdown(f"**{words}**")
            if rows.empty:
                st.caption("No step of this kind.")
                continue
            _row(("step in Explore", "S(n)", "gave", "error", "nodes", "the step wrote"), head=True)
            for row in rows.itertuples():
                _row(
                    (
                        row,
                        numbers.significant(row.surrogate),
                        numbers.count(row.walked),
                        _signed(row.error),
                        numbers.count(row.nodes),
                        plain(row.text, 44),
                    )
                )
    table = pd.concat([over, under], ignore_index=True)
    st.download_button(
        "CSV",
        data=lambda: table.to_csv(index=False).encode(),
        file_name="bastion-surrogate-worst.csv",
        mime="text/csv",
        type="tertiary",
        on_click="ignore",
        key="surrogate-worst-csv",
    )


def _row(cells: tuple, head: bool = False) -> None:
    columns = st.columns([3, 1, 1, 1, 1.3, 3.7], vertical_alignment="center", gap="small")
    for place, (column, cell) in enumerate(zip(columns, cells)):
        if head:
            column.caption(cell)
        elif place:
            column.markdown(cell or "(nothing)")
        else:
            column.page_link(
                "pages/explore.py",
                label=plain(f"step {cell.step}, {cell.method}", 34),
                query_params={"run": cell.run, "step": str(cell.step)},
                help=plain(f"Run {cell.run} {cell.prompt_set}".strip()),
            )


def _all_steps(report: SurrogateReport) -> pd.DataFrame:
    """Rows addressed by their place among all steps: the frame's index, cut steps being holes."""
    return report.frame.reindex(range(int(report.frame.index.max()) + 1))


def _correlation(estimate: object) -> str:
    return numbers.NONE if not estimate else within(estimate).split(",")[0]


def _interval(estimate: Estimate | None, found: Correlation | None, unit: Unit) -> str:
    parts = within(estimate).split(", ") if estimate else []
    if len(parts) > 1:
        return f"{parts[1]} (95 %)"
    return f"no interval: {found.clusters} {unit}{'s' * (found.clusters != 1)}" if found and found.too_few else "no interval"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + numbers.significant(value, 2)
