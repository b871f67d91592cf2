"""The replay of a race: lanes side by side, each text growing at the pace that was measured.

How a page mounts it:

    from bastion.figures.race_component import CSS, HTML, JS, NAME
    replay = st.components.v2.component(NAME, html=HTML, css=CSS, js=JS)      # once, at module level
    replay(key="race-replay", data=race_payload(...))

It needs no answer from the server and sends none. Drawing of tokens, nodes and edges is that of the
tree component, whose files it shares.
"""

from __future__ import annotations

import json
from pathlib import Path

from bastion.figures.glossary import GLOSSARY
from bastion.figures.palette import css_variables

NAME = "bastion_race"
_FOLDER = Path(__file__).parent

_SHARED = ("format.js", "dom.js", "text.js", "geometry.js", "tree.js", "tooltip.js")
_OWN = ("lane.js", "lane_tree.js", "controls.js", "race.js")
"""Parts of one JavaScript module, in order; they share its scope."""


def _read(folder: str, name: str) -> str:
    return (_FOLDER / folder / name).read_text(encoding="utf-8")


HTML: str = _read("race", "race.html")
CSS: str = css_variables() + _read("tree", "component.css") + _read("race", "race.css")
JS: str = (f"const GLOSSARY = {json.dumps(GLOSSARY)};\n" + "\n".join(_read("tree", name) for name in _SHARED)
           + "\n" + "\n".join(_read("race", name) for name in _OWN))
