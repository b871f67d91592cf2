"""The table of saved runs: what a row says, and which rows are selected."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from datetime import datetime

import streamlit as st

from bastion.figures.faithfulness import lossy_label
from bastion.figures.glossary import GLOSSARY
from bastion.records import RunSummary

ROW, HEADER, MOST_ROWS = 35, 38, 16   # pixels, pixels, rows shown at once

ENDINGS = {"stop": "model ended", "length": "at the limit", "context": "context full", "cancelled": "stopped",
           "killed": "interrupted", "failed": "failed", "unfinished": "interrupted"}

CHOSEN = "runs-chosen"   # ids, kept in the session so that a look at another page loses nothing


def run_table(runs: Sequence[RunSummary], grouped: bool) -> list[RunSummary]:
    """Draw the table, newest first until a heading is clicked; the selected runs. `grouped`: show the group too."""
    ids = [run.id for run in runs]
    chosen = set(st.session_state.get(CHOSEN, ()))
    config = st.column_config
    columns = {
        "made": config.DatetimeColumn("made", format="D MMM YYYY, HH:mm", width=128),
        "title": config.TextColumn("title", width=220),
        "method": config.TextColumn("method", width=112),
        "temperature": config.NumberColumn("temp.", format="%.2g", width=58, help="Temperature of the sampling."),
        "tokens": config.NumberColumn("tokens", format="localized", width=62),
        "tau": config.NumberColumn("tau", format="%.2f", width=50, help=GLOSSARY["tau"]),
        "speed": config.NumberColumn("tokens/s", format="%.1f", width=70, help="Of the decode steps, as measured."),
        "ended": config.TextColumn("ended", width=96),
        "size": config.NumberColumn("size, MB", format="%.2f", width=72, help="What its files take on disk."),
        "pair": config.TextColumn("pair", width=118, help=GLOSSARY["pair"]),
        "device": config.TextColumn("device", width=130),
        "set": config.TextColumn("prompt set", width=90) if grouped else None,
        "group": config.TextColumn("group", width=90) if grouped else None,
        "note": config.TextColumn("note", width=180),
    }
    # Selected rows are places in this very list: another list is another table, with the same runs selected.
    key = "runs-table-" + hashlib.sha1("\n".join(ids).encode()).hexdigest()[:12]
    event = st.dataframe(
        _frame(runs), key=key, hide_index=True, column_config=columns, on_select="rerun", selection_mode="multi-row",
        selection_default={"selection": {"rows": [place for place, run_id in enumerate(ids) if run_id in chosen]}},
        height=HEADER + ROW * min(len(ids), MOST_ROWS), row_height=ROW, placeholder="\u2013")
    selected = [runs[place] for place in event.selection.rows if place < len(runs)]
    st.session_state[CHOSEN] = [run.id for run in selected]
    return selected


def _frame(runs: Sequence[RunSummary]):
    import pandas as pd   # here, so that a page without runs starts without it
    return pd.DataFrame({
        "made": pd.Series([_made(run.created) for run in runs], dtype="datetime64[us]"),
        "title": [one_line(run.title) or "untitled" for run in runs],
        "method": [_method(run) for run in runs],
        "temperature": pd.Series([run.temperature for run in runs], dtype="float64"),
        "tokens": pd.Series([run.tokens for run in runs], dtype="float64"),
        "tau": pd.Series([run.tau for run in runs], dtype="float64"),
        "speed": pd.Series([run.tokens_per_second for run in runs], dtype="float64"),
        "ended": [ended(run) for run in runs],
        "size": [run.bytes / 1e6 for run in runs],
        "pair": [one_line(run.pair) for run in runs],
        "device": [one_line(run.device) for run in runs],
        "set": [one_line(run.prompt_set) for run in runs],
        "group": [one_line(run.group) for run in runs],
        "note": [one_line(run.note) for run in runs],
    })


def _method(run: RunSummary) -> str:
    """The method, and the acceptance rule where that made the output other than the target's."""
    rule = lossy_label({"method": run.method, "sampling": {"temperature": run.temperature, "acceptance": run.acceptance}})
    return ", ".join(filter(None, (one_line(run.method), rule)))


def ended(run: RunSummary) -> str:
    """How the run ended, in a word or two."""
    if run.finish_reason is None:
        return "decoding"
    return ENDINGS.get(run.finish_reason, one_line(run.finish_reason))


def one_line(text: str) -> str:
    """Text from outside as one line of a cell: no control, format or direction-changing character."""
    return "".join(c for c in " ".join(text.split()) if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))


def _made(iso: str) -> datetime | None:
    """The time here, without a zone; None where the calendar has none."""
    try:
        return datetime.fromisoformat(iso).astimezone().replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return None
