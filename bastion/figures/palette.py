"""One palette for every page, readable on light and dark and to the colour-blind.

The base is the set of Okabe and Ito (2008). Colour never stands alone: each origin also has a
marker, each method also has a dash.
"""

from __future__ import annotations

ACCEPTED = "#0072B2"   # filled circle
BONUS = "#D55E00"      # diamond
REJECTED = "#767676"   # small hollow circle
NOT_BOUGHT_OPACITY = 0.4  # outline of a node that was drafted, not bought

MARKERS = {"accepted": "circle", "bonus": "diamond", "rejected": "circle-open"}

INK = {"light": "#16181D", "dark": "#ECEAE4"}
GROUND = {"light": "#FFFFFF", "dark": "#111317"}

OKABE_ITO = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)

_BLACK, _ORANGE, _SKY, _GREEN, _YELLOW, _BLUE, _VERMILION, _PURPLE = OKABE_ITO

METHOD_LOOKS = {
    "ar": (_BLACK, "solid"),
    "dflash": (_ORANGE, "solid"),
    "ddtree": (_SKY, "solid"),
    "beam": (_GREEN, "solid"),
    "sequoia": (_YELLOW, "solid"),
    "bastion": (_BLUE, "solid"),           # the accent
    "bastion+ngram": (_BLUE, "dash"),
    "specinfer": (_VERMILION, "solid"),
    "eagle3": (_PURPLE, "solid"),
    "small-lm": (_BLACK, "dash"),
    "ngram": (_ORANGE, "dot"),
    "synthetic": (_GREEN, "dot"),          # simulated
}
"""Colour and plotly dash of each method: eight colours, so a ninth line repeats one with another dash."""

ESTIMATOR_DASHES = {"roofline": "1px,1px", "raw": "dot", "roofline-ema": "dashdot", "ema": "longdash", "table": "longdashdot", "convex": "12px,3px"}
GRAFTED_DASHES = {"roofline": "2px,6px", "raw": "4px,8px", "roofline-ema": "8px,2px,2px,2px,2px,2px", "ema": "16px,4px",
                  "table": "16px,4px,4px,4px", "convex": "4px,2px"}
"""Dash of `bastion@NAME` and of `bastion+ngram@NAME`: the colour stays the method's, another estimator is another dash."""

PARTS = {"draft": 0.45, "build": 0.7, "verify": 0.85, "commit": 0.25}
"""The stages of a step are shades of ink (opacity), since colours already name origins and methods."""


def method_name(method: str) -> str:
    """`ddtree:16` -> `ddtree`, `bastion@ema` -> `bastion`: the settings of a method do not change its colour."""
    return method.split(":", 1)[0].split("@", 1)[0].strip()


def method_colour(method: str, dark: bool = False) -> str:
    """Fixed colour of a method; black turns to the light ink on a dark ground.

    An unknown method takes the grey of rejected nodes.
    """
    colour, _ = METHOD_LOOKS.get(method_name(method), (REJECTED, ""))
    return INK["dark"] if dark and colour == _BLACK else colour


def method_dash(method: str) -> str:
    """Plotly dash of a method's line, so that a reused colour stays apart."""
    name, at, estimator = method.split(":", 1)[0].strip().partition("@")
    if at and name in METHOD_LOOKS:
        return (GRAFTED_DASHES if "+" in name else ESTIMATOR_DASHES).get(estimator, "dashdot")
    return METHOD_LOOKS.get(method_name(method), ("", "dashdot"))[1]


def bar_fill(method: str, dark: bool = False) -> dict[str, object]:
    """Plotly marker of a method's bar: its colour, striped where its line is not solid."""
    colour = method_colour(method, dark)
    stripes = {"solid": "", "dash": "/", "dot": ".", "dashdot": "x"}.get(method_dash(method), "")
    return {"color": colour, "line": {"width": 0},
            "pattern": {"shape": stripes, "fgcolor": GROUND["dark" if dark else "light"], "size": 8, "solidity": 0.25}}


def css_variables() -> str:
    """The palette as custom properties, for the style sheet of the tree component."""
    lines = [f"--accepted: {ACCEPTED};", f"--bonus: {BONUS};", f"--rejected: {REJECTED};",
             f"--not-bought: {NOT_BOUGHT_OPACITY};"]
    lines += [f"--part-{part}: {opacity};" for part, opacity in PARTS.items()]
    return ".bs {\n  " + "\n  ".join(lines) + "\n}\n"
