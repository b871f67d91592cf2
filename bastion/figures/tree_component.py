"""The tree component: text, tree, node panel and live charts of one run, stepped in the browser.

How a page mounts it (streamlit's components v2):

    from bastion.figures.tree_component import CSS, HTML, JS, NAME
    from bastion.figures.tree_payload import run_payload, step_payload
    explore = st.components.v2.component(NAME, html=HTML, css=CSS, js=JS)      # once, at module level
    result = explore(key=f"tree-{run_id}", data=run_payload(...),
                     on_step_change=lambda: None, on_have_change=lambda: None)

- Mount with a `key`, inside the fragment that polls, so that a change of step reruns only that.
- Keep `isolate_styles` at its default: the style sheet expects its own shadow root.
- `result.step` is {"run": id, "step": index}, sent 400 ms after the last move: put it in the URL.
  Pass the URL's step as `select` when mounting; it counts only when a run is first shown, so it is
  harmless to pass a newer one later. Ignore `result.step` when its run is not the one shown.
- Sending only what is new: `result.have` is {"run": id, "have": k} once the component holds steps
  0..k-1. Send `steps[k:]` with `start=k` when its run is the one shown, else everything with
  `start=0`. Nothing is lost when an update is: the component reports `have` after every 16 new
  steps of a live run, and at once when `start` lies past what it holds. Sending every step every
  time is also right, only larger (some 8 kB a step of 16 nodes, 14 kB of 64, the 64 past the stop included).
- Make each step's payload once, when its event arrives, with the run's text pieces of that step, and
  keep it: they never change.
"""

from __future__ import annotations

import json
from pathlib import Path

from bastion.figures.glossary import GLOSSARY
from bastion.figures.palette import css_variables

NAME = "bastion_tree"
_FOLDER = Path(__file__).parent / "tree"

_SCRIPTS = ("format.js", "dom.js", "text.js", "geometry.js", "tree.js", "node.js", "chart.js", "charts.js",
            "stepper.js", "tooltip.js", "export.js", "main.js")
"""Parts of one JavaScript module, in order; they share its scope."""


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


HTML: str = _read("component.html")
CSS: str = css_variables() + _read("component.css")
JS: str = f"const GLOSSARY = {json.dumps(GLOSSARY)};\n" + "\n".join(_read(name) for name in _SCRIPTS)
