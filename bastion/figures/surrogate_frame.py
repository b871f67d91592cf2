"""The house frame with a caption of several lines, wrapped so that a narrow page shows all of it."""

from __future__ import annotations

import html
import textwrap

import plotly.graph_objects as go

from bastion.figures.frame import HEIGHT, house_figure

LINE = 66        # characters of a caption that a chart 430 pixels wide can show
LINE_HEIGHT = 15  # pixels
ABOVE = 50       # pixels from the axis to the caption: tick labels and the axis title


def captioned_figure(title: str, caption: str, x: str, y: str, dark: bool, height: int = HEIGHT) -> go.Figure:
    """`house_figure` with the caption wrapped under the axis, and as much taller than `height` as it needs.

    The caption is plain text; what it and the title hold of < and & is shown as it is.
    """
    lines = textwrap.wrap(caption, LINE)
    figure = house_figure(html.escape(title, quote=False), "<br>".join(html.escape(line, quote=False) for line in lines), x, y, dark)
    below = ABOVE + LINE_HEIGHT * len(lines) + 8
    figure.layout.annotations[0].update(yanchor="top", yshift=-ABOVE)
    figure.update_layout(height=height + below - figure.layout.margin.b, margin={"b": below})
    return figure
