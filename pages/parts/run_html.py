"""The button that saves a run as one HTML file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bastion.records import RunStore

HELP = "One file with the tree stepper in it, for slides and course pages. It needs no network."


def html_button(place: Any, store: RunStore, run_id: str | None, step: Callable[[], Any] = lambda: None, **options: Any) -> None:
    """Draw it in `place`; dimmed without a run. `step` is asked where the file opens, when it is made."""
    place.download_button("Export as HTML", data=lambda: _page(store, run_id, step()), file_name=f"bastion-run-{run_id}.html",
                          mime="text/html", disabled=run_id is None, on_click="ignore", help=HELP, **options)


def _page(store: RunStore, run_id: str, step: Any) -> bytes:
    from bastion.figures.html_export import run_html   # only when it is asked for
    return run_html(store.open(run_id), step if isinstance(step, int) else None).encode("utf-8")
