"""What a benchmark found: the table in the paper's layout, charts, differences and downloads."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict

import pandas as pd
import streamlit as st

from bastion.analysis.benchmark import FEWEST, Difference, TableCell, benchmark_table, cell_values, differences
from bastion.analysis.benchmark_published import Published, published, published_gap
from bastion.figures import benchmark_tables as tables
from bastion.figures import numbers
from bastion.figures.benchmark_charts import speedup_figure, tau_figure
from bastion.figures.benchmark_html import table_html
from bastion.figures.glossary import GLOSSARY
from bastion.records.benchmark_store import Benchmark
from pages.parts.chart import chart, dark
from pages.parts.text import plain

KEPT_TABLES = 8
DIFFERENCES_SHOWN = 20
RUNS_IN_A_LINK = 60

_tables: OrderedDict[tuple[str, int], tuple[list[TableCell], list[Difference]]] = OrderedDict()
_lock = threading.Lock()


def bench_results(benchmark: Benchmark) -> None:
    """Everything below the progress, as far as it is known."""
    cells, apart = _computed(benchmark)
    temperature = _temperature(benchmark)
    own = [cell for cell in cells if cell.temperature == temperature]
    if not any(cell.prompts for cell in own):
        st.caption("The table stands here once the first prompt is decoded by every method.")
        return
    beside = [one for one in published() if one.temperature == temperature and one.prompt_set in tables.columns(own)]
    st.subheader("Speedup and tau per prompt set", anchor=False, help=f"{GLOSSARY['speedup']} {GLOSSARY['tau']}")
    st.html(table_html(own, beside, dark()))
    st.caption(plain("Measured: " + tables.where_words(benchmark.info) + " Small: 95 % bootstrap intervals over prompts, "
                     f"none below {FEWEST} prompts."))
    _published_line(beside)
    data = pd.DataFrame([cell_values(cell) for cell in own])
    _charts(benchmark.id, own, beside, data)
    _differences(apart)
    _downloads(benchmark, cells, apart, [one for one in published() if one.prompt_set in tables.columns(cells)
                                         and one.temperature in benchmark.temperatures])
    _kept(benchmark)


def _computed(benchmark: Benchmark) -> tuple[list[TableCell], list[Difference]]:
    """The table, made once per new row and shared by every tab that looks at the benchmark."""
    key = benchmark.id, benchmark.done
    with _lock:
        if key not in _tables:
            turns = {(prompt.prompt_set, prompt.id): len(prompt.turns) for prompt in benchmark.prompts}
            _tables[key] = (benchmark_table(benchmark.rows, benchmark.sets, benchmark.methods, benchmark.temperatures, turns),
                            differences(benchmark.rows))
            while len(_tables) > KEPT_TABLES:
                _tables.popitem(last=False)
        return _tables[key]


def _temperature(benchmark: Benchmark) -> float:
    known = {f"{value:g}": value for value in benchmark.temperatures}
    if len(known) == 1:
        return benchmark.temperatures[0]
    key = "bench-shown"
    if st.session_state.get(key, next(iter(known))) not in known:
        st.session_state[key] = next(iter(known))
    chosen = st.segmented_control("Temperature", list(known), default=next(iter(known)), required=True, key=key, bind="query-params")
    return known[chosen]


def _published_line(beside: list[Published]) -> None:
    if beside:
        sources = "; ".join(dict.fromkeys(f"{one.note} ({one.source})" for one in beside))
        st.caption(plain(f"Published, in italics: {sources}. {published_gap()}"))
    elif published():
        st.caption("The paper gives its mean over sets at temperature 0; it stands beside ours where several sets are measured at that temperature.")


def _charts(bench_id: str, own: list[TableCell], beside: list[Published], data: pd.DataFrame) -> None:
    for name, figure in (("bench-speedup", speedup_figure(own, beside, dark())), ("bench-tau", tau_figure(own, dark()))):
        kept = st.session_state.setdefault("bench-axes", {})   # an axis never shrinks while its benchmark goes on
        key = bench_id, name, own[0].temperature
        kept[key] = max(kept.get(key, 0.0), float(figure.layout.yaxis.range[1]))
        figure.update_yaxes(range=[0, kept[key]])
        chart(figure, data, name)


def _differences(apart: list[Difference]) -> None:
    if not apart:
        return
    with st.expander(f"Where greedy outputs differ from plain decoding: {len(apart)}"):
        st.caption(GLOSSARY["top-2 gap"] + " Positions count emitted tokens from 0.")
        st.dataframe(pd.DataFrame([
            {"method": one.method, "set": one.prompt_set, "prompt": one.prompt, "turn": one.turn + 1, "position": one.position,
             "top-2 gap": numbers.significant(one.top2_gap)} for one in apart[:DIFFERENCES_SHOWN]]), hide_index=True, width="stretch")


def _kept(benchmark: Benchmark) -> None:
    """The way to the runs that were kept. The address takes a limited number of them."""
    runs = [row.run for row in benchmark.rows if row.run and row.method != "ar"]
    if runs:
        taken = runs[-RUNS_IN_A_LINK:]
        kept = numbers.counted(len(runs), "kept run")
        words = f"{'the' if len(runs) == 1 else 'all'} {kept}" if len(taken) == len(runs) else f"the newest {len(taken)} of {kept}"
        st.page_link("pages/surrogate.py", label=f"Surrogate against outcome, {words}", query_params={"surrogate-runs": ",".join(taken)})


def _downloads(benchmark: Benchmark, cells: list[TableCell], apart: list[Difference], beside: list[Published]) -> None:
    row = st.container(horizontal=True, vertical_alignment="center", gap="small")
    row.caption("The table as", width="content")
    note = tables.where_words(benchmark.info)
    for name, (ending, write) in tables.EXPORTS.items():
        row.download_button(name, data=lambda write=write: write(cells, beside, note=note).encode(), type="tertiary", on_click="ignore",
                            file_name=f"bastion-benchmark-{benchmark.id}.{ending}", mime="text/plain", key=f"bench-as-{ending}")
    row.download_button("JSON", data=lambda: json.dumps(tables.json_object(cells, apart, benchmark.info, beside), indent=1).encode(),
                        type="tertiary", on_click="ignore", file_name=f"bastion-benchmark-{benchmark.id}.json", mime="application/json",
                        key="bench-as-json")
