"""A run as one HTML file: the tree stepper with everything it needs, for slides and course pages.

The file asks for nothing from anywhere. Its Content-Security-Policy allows the one script and the two
style sheets written here, by their hashes, and the pictures that the page draws of itself; whatever a
token, a title or a prompt contains is text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from bastion import __version__
from bastion.analysis.speed import estimated_plain_speed
from bastion.figures import numbers
from bastion.figures.faithfulness import lossy_label
from bastion.figures.glossary import GLOSSARY
from bastion.figures.tree_component import CSS, HTML, JS
from bastion.figures.tree_payload import run_payload, step_payload
from bastion.records import Run
from bastion.token_text import escape_undecodable

_FOLDER = Path(__file__).parent / "export"
LONGEST_TITLE = 200   # characters; a longer one would push the run off the first screen
_EXPORTED = "export default function (component) {"

# The same characters as UNSEEN in tree/format.js: those that draw nothing or reorder what stands around them.
_UNSEEN = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069"
                     "\ufeff\ufff9-\ufffb]")
# Without "<" there is no end tag and no comment; halves of characters cannot be written as UTF-8.
_NOT_IN_SCRIPT = re.compile(f"[<\ud800-\udfff]|{_UNSEEN.pattern}")


def run_html(run: Run, step: int | None = None) -> str:
    """The whole file as text, to be written as UTF-8.

    step: the step it opens at, by its index; the address `#step=12` asks for another one. None opens
    the first decode step.
    """
    style, view_style = _read("page.css"), CSS + _read("view.css")
    script = _module() + _read("mount.js")
    policy = (f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)} {_hash(view_style)}; "
              "img-src blob: data:; base-uri 'none'; form-action 'none'")
    title = _text(run.info["title"][:LONGEST_TITLE]) or "A run"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="BASTION Studio {__version__}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1 dir="auto">{title}</h1>
<p class="quiet">{_made_with(run.info)}</p>
<dl>{_numbers(run)}</dl>
{_prompt(run.info)}
</header>
<main id="host"></main>
<noscript><p>Stepping through the trees needs JavaScript. The text of this run:</p><pre dir="auto">{_text(run.text)}</pre></noscript>
<footer class="quiet">Recorded with BASTION Studio {__version__}, schema {run.info["schema_version"]}, run {_text(run.id)}.
<span class="screen">Left and right arrow keys step; Home, End and space work inside the steps. #step=12 at the end of the address opens step 12.</span>
</footer>
<template id="view">{HTML}<style>{view_style}</style></template>
<script type="application/json" id="run">{_data(run, step)}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _module() -> str:
    """The component's module with its entry under a name, for a script in the same file."""
    if JS.count(_EXPORTED) != 1 or "</script" in JS.lower() or "<!--" in JS:
        raise AssertionError("the tree component's module cannot stand in a page as it is")
    return JS.replace(_EXPORTED, "function mount(component) {")


def _data(run: Run, step: int | None) -> str:
    depth = run.info.get("drafter_depth")
    depth = depth if isinstance(depth, int) else None
    steps = [step_payload(record, run.text_of, depth, pieces) for record, pieces in zip(run.steps, run.pieces)]
    payload = run_payload(run.id, steps, select=step, method=run.info["method"], drafter_depth=depth, yardstick=_yardstick(run),
                          note="This run has no step.")
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _NOT_IN_SCRIPT.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _yardstick(run: Run) -> dict[str, Any] | None:
    """Plain decoding's speed on the same prompt, as measured or else as estimated from the steps."""
    measured = _measured_plain(run.info)
    if measured is not None:
        return {"tokens_per_second": measured, "measured": True}
    rate = estimated_plain_speed(run.steps)
    return None if rate is None else {"tokens_per_second": rate, "measured": False}


def _measured_plain(info: Mapping[str, Any]) -> float | None:
    rate = (info.get("yardstick") or {}).get("tokens_per_second")
    return float(rate) if isinstance(rate, (int, float)) and rate > 0 else None


def _made_with(info: Mapping[str, Any]) -> str:
    temperature = info["sampling"].get("temperature")
    warmth = f"temperature {temperature:g}" if isinstance(temperature, (int, float)) else ""
    parts = [info["pair"], f"method {info['method']}" if info["method"] else "", warmth, lossy_label(info), info["device"], info["dtype"],
             _day(info["created"]), "cut short" if not info["complete"] else ""]
    return " \u00b7 ".join(f"<bdi>{_text(part)}</bdi>" for part in parts if part)


def _numbers(run: Run) -> str:
    totals, plain = run.info["totals"], _measured_plain(run.info)
    speed = totals.get("tokens_per_second")
    rows = [
        ("tokens", numbers.count(totals.get("tokens")), "Tokens in the output."),
        ("steps", numbers.count(totals.get("steps")), "Decode steps; the prefill is none."),
        ("tau", numbers.significant(totals.get("tau")), GLOSSARY["tau"]),
        ("nodes a step", numbers.significant(totals.get("nodes_mean")), GLOSSARY["budget"]),
        ("speed, measured", numbers.rate(speed), "Tokens per second of the decode steps."),
    ]
    if plain is not None and speed is not None:
        rows.append(("speedup, measured", numbers.ratio(speed / plain), GLOSSARY["speedup"]))
    return "".join(f'<div title="{escape(words)}"><dt>{name}</dt><dd>{value}</dd></div>' for name, value, words in rows)


def _prompt(info: Mapping[str, Any]) -> str:
    prompt = info["prompt"]
    if isinstance(prompt, list):   # chat messages
        turns = [turn for turn in prompt if isinstance(turn, Mapping)]
        prompt = "\n\n".join(f"{turn.get('role', '')}: {turn.get('content', '')}" for turn in turns)
    if not isinstance(prompt, str) or not prompt.strip():
        return ""
    return f'<h2>Prompt</h2>\n<p class="prompt" dir="auto" tabindex="0">{_text(prompt)}</p>'


def _day(iso: str) -> str:
    try:
        made = datetime.fromisoformat(iso)
    except ValueError:
        return ""
    return f"{made.day} {made:%B} {made.year}"


def _text(text: str) -> str:
    """Text from outside, for an element or an attribute: no markup, nothing that hides or reorders."""
    shown = _UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", escape_undecodable(text))
    return escape(shown)


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
