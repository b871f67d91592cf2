"""The row under a plotly chart: the chart as SVG and PNG, and a link to it. Works in the browser alone.

    tools = st.components.v2.component(NAME, html=HTML, css=CSS, js=JS)     # once, at module level
    with st.container(key=f"chart-{name}"):                                 # the chart it belongs to
        st.plotly_chart(...)
        tools(key=..., data={"name": name})
"""

from __future__ import annotations

from pathlib import Path

NAME = "bastion_chart_tools"
_FOLDER = Path(__file__).parent / "tools"

HTML = """<div class="tools" role="group" aria-label="Chart"><button type="button" data-kind="svg">SVG</button>
<button type="button" data-kind="png">PNG</button><a data-kind="link" href="#">Link</a></div>"""
CSS: str = (_FOLDER / "tools.css").read_text(encoding="utf-8")
JS: str = (_FOLDER / "tools.js").read_text(encoding="utf-8")
