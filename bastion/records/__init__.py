"""The record of a run: its schema, and its store on disk. No torch, no streamlit.

    store = RunStore()
    writer = store.create({"title": "Sheep", "method": "bastion", ...}, text_of=..., decode=...)
    for step in decode(...):
        writer.append(step)
    writer.finish()
    run = store.open(writer.id)
"""

from bastion.records.output_json import run_to_json, step_to_json
from bastion.records.run import Run, RunSummary
from bastion.records.schema import SCHEMA_VERSION
from bastion.records.store import RunStore
from bastion.records.text_pieces import TextIncrements
from bastion.records.totals import run_totals, why_finished
from bastion.records.writer import RunWriter
from bastion.step import GrowthLog, StepRecord, StepSeconds, StepTrace

__all__ = ["GrowthLog", "Run", "RunStore", "RunSummary", "RunWriter", "SCHEMA_VERSION",
           "StepRecord", "StepSeconds", "StepTrace", "TextIncrements", "run_to_json", "run_totals",
           "step_to_json", "why_finished"]
