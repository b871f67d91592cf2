"""A bare page around one of our components, mounted as streamlit's components v2 mounts it."""

import json

from bastion.figures import tree_component

THEMES = {"light": ("#16181d", "#ffffff"), "dark": ("#eceae4", "#111317")}

MOUNT = """
const parts = JSON.parse(document.getElementById("parts").textContent);
const root = document.getElementById("host").attachShadow({ mode: "open" });
const holder = document.createElement("div");
holder.append(document.createRange().createContextualFragment(parts.html));
const style = document.createElement("style");
style.textContent = parts.css;
holder.append(style);
root.append(holder);
const component = await import(URL.createObjectURL(new Blob([parts.js], { type: "text/javascript" })));
window.sent = [];
window.alerts = 0;
window.alert = () => { window.alerts += 1; };
window.feed = (data) => { window.unmount = component.default({ data, parentElement: root, key: "k", name: "n",
  setStateValue: (name, value) => window.sent.push([name, value]), setTriggerValue: () => {} }); };
window.feed(parts.data);
window.ready = true;
"""


def page_of(data: dict, theme: str = "light", component=tree_component) -> str:
    """HTML with one component, the tree's unless another is given; `feed(data)` in the page is a new message
    from the server, `sent` what it reported."""
    ink, ground = THEMES[theme]
    parts = json.dumps({"html": component.HTML, "css": component.CSS, "js": component.JS, "data": data}).replace("<", "\\u003c")
    return (f'<!doctype html><meta charset="utf-8"><style>body {{ margin: 24px; background: {ground} }} #host {{'
            f" --st-text-color: {ink}; --st-background-color: {ground} }}</style>"
            f'<div id="host"></div><script type="application/json" id="parts">{parts}</script>'
            f'<script type="module">{MOUNT}</script>')
