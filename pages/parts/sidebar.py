"""The sidebar: pair and device, calibration, queue, recent runs, download and upload of a run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, UTC

import streamlit as st

from bastion.errors import UserError
from bastion.figures.faithfulness import lossy_label
from bastion.figures.number_type_words import number_type_words
from bastion.figures.numbers import count
from bastion.jobs import manager
from bastion.jobs.shown import Shown, recent
from bastion.records import RunSummary
from bastion.records.search import SINGLE, kind_of
from pages.parts.run_html import html_button
from pages.parts.text import plain

LISTED = 8


def sidebar(shown: Shown | None) -> None:
    with st.sidebar:
        if shown is not None:
            st.markdown("**This run**")
            st.caption("  \n".join(f"{name}: {plain(value, 160)}" for name, value in _facts(shown) if value))
            if shown.saved:
                st.download_button("Download this run", data=lambda: manager().store.export_zip(shown.id),
                                   file_name=f"bastion-run-{shown.id}.zip", mime="application/zip", on_click="ignore",
                                   width="stretch", help="A zip of JSON and Parquet that any BASTION Studio can open.")
                html_button(st, manager().store, shown.id, _step_of(shown.id), width="stretch")
        _recent(shown)
        _upload()


def _facts(shown: Shown) -> list[tuple[str, str]]:
    info = shown.info
    sampling = info.get("sampling") if isinstance(info.get("sampling"), dict) else {}
    waiting = 0 if shown.final else manager().waiting()
    return [
        ("Pair", str(info.get("pair") or "")),
        ("Device", str(info.get("device") or "")),
        ("Number type", number_type_words(info)),
        ("Method", str(info.get("method") or "")),
        ("Temperature", f"{sampling['temperature']:g}" if isinstance(sampling.get("temperature"), (int, float)) else ""),
        ("Acceptance", lossy_label(info)),
        ("Calibration", calibration_words(info.get("calibration"))),
        ("Queue", f"{waiting} at work or waiting" if waiting > 1 else ""),
    ]


def _recent(shown: Shown | None) -> None:
    """The newest runs that were made one by one; those of races and benchmarks are many, and stand on Runs."""
    runs = recent()
    if not runs:
        return
    single = [run for run in runs if kind_of(run) == SINGLE]
    st.markdown("**Recent runs**")
    with st.container(gap=None, key="recent"):
        for run in single[:LISTED]:
            st.page_link("pages/explore.py", label=_label(run), query_params={"run": run.id},
                         disabled=shown is not None and run.id == shown.id)
        st.page_link("pages/runs.py", label=f"All runs: {count(len(runs))}")


def _label(run: RunSummary) -> str:
    state = "" if run.complete else " (decoding)" if run.finish_reason is None else " (interrupted)"
    return f"{plain(when(run.created))}  {plain(run.title, 25) or 'untitled'}{state}"


def _step_of(run_id: str) -> Callable[[], int | None]:
    """Asks for the step on show when it is called: steps change without this script being run again."""
    linked = st.query_params.get("step", "")
    first = int(linked) if linked.isdecimal() and len(linked) < 9 else None
    looked_at = st.session_state.setdefault("looked-at", {})
    return lambda: looked_at.get(run_id, first)


def _upload() -> None:
    with st.expander("Open a run from a file"):
        file = st.file_uploader("A zip that BASTION Studio wrote", type="zip", key="upload")
        if file is not None and st.session_state.get("uploaded") != file.file_id:
            st.session_state["uploaded"] = file.file_id
            try:
                st.query_params.from_dict({"run": manager().store.import_zips(file)[0]})
            except UserError as error:
                st.error(plain(str(error)))
            else:
                st.rerun()


def calibration_words(calibration: object) -> str:
    """Age and quality of a calibration as run.json holds it; empty when the run used none."""
    if not isinstance(calibration, dict) or not isinstance(calibration.get("made_at"), str):
        return ""
    state = "ok" if calibration.get("peaks_source") == "measured" else "by published peaks"
    if calibration.get("shipped") is True:
        state = "a shipped profile, not measured here"
    return ", ".join(filter(None, (age(calibration["made_at"]), state)))


def when(iso: str) -> str:
    """An ISO time as a person says it here: the time today, the date before."""
    try:
        made = datetime.fromisoformat(iso).astimezone()
    except ValueError:
        return ""
    return f"{made:%H:%M}" if made.date() == datetime.now().astimezone().date() else f"{made.day} {made:%b}"


def age(iso: str) -> str:
    """How long ago an ISO time was, in the largest unit that is at least one."""
    try:
        made = datetime.fromisoformat(iso)
    except ValueError:
        return ""
    made = made if made.tzinfo else made.replace(tzinfo=UTC)
    seconds = max((datetime.now(UTC) - made).total_seconds(), 0)
    for unit, size in (("day", 86_400), ("hour", 3_600), ("min", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 and unit != 'min' else ''} ago"
    return "just now"
