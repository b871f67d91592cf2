"""The schema of a run on disk: its version, the four tables, and what `run.json` must hold.

A finished run is the folder `runs/<id>/` with exactly the files of `FILE_NAMES`. Every table has
a column `step`, the index of the step its row belongs to, and rows stand in step order.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1
"""Raised when a reader of the old version could no longer read the new files rightly."""

RUN_JSON = "run.json"
TABLE_NAMES = ("steps", "nodes", "growth", "marginals")
FILE_NAMES = (RUN_JSON, *(f"{name}.parquet" for name in TABLE_NAMES))

_ids = pa.list_(pa.int64())

STEPS = pa.schema([
    pa.field("step", pa.int64(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("emitted", _ids, nullable=False),
    pa.field("pieces", pa.list_(pa.string()), nullable=False),  # text each emitted token added
    pa.field("context", pa.int64(), nullable=False),
    pa.field("root", pa.int64(), nullable=False),
    pa.field("nodes", pa.int64(), nullable=False),
    pa.field("accepted", _ids, nullable=False),
    pa.field("bonus", pa.int64(), nullable=False),
    pa.field("surrogate", pa.float64(), nullable=False),
    pa.field("stop_reason", pa.string(), nullable=False),
    pa.field("draft_seconds", pa.float64(), nullable=False),
    pa.field("build_seconds", pa.float64(), nullable=False),
    pa.field("verify_seconds", pa.float64(), nullable=False),
    pa.field("commit_seconds", pa.float64(), nullable=False),
    pa.field("top2_gaps", pa.list_(pa.float32()), nullable=False),
    pa.field("predicted_verify_seconds", pa.float64()),
    # The rest is the trace. Shapes are kept because an empty table has none.
    pa.field("traced", pa.bool_(), nullable=False),
    pa.field("marginal_depth", pa.int64(), nullable=False),
    pa.field("marginal_choices", pa.int64(), nullable=False),
    pa.field("target_choices", pa.int64(), nullable=False),
    pa.field("growth_rows", pa.int64()),                        # null: the method keeps no log
    pa.field("predicted_seconds", pa.list_(pa.float64()), nullable=False),
    pa.field("predicted_draft_seconds", pa.float64()),
    pa.field("predicted_other_seconds", pa.float64()),
    # Per emitted token; null where it was not worked out, and absent in runs of older versions.
    pa.field("variation", pa.list_(pa.float64())),
    pa.field("rule_entropy", pa.list_(pa.float64())),
    pa.field("target_entropy", pa.list_(pa.float64())),
    pa.field("surprise", pa.list_(pa.float64())),
])

LATER_COLUMNS = frozenset({"variation", "rule_entropy", "target_entropy", "surprise"})
"""Columns that runs of older versions lack: they read as null."""

NODES = pa.schema([
    pa.field("step", pa.int64(), nullable=False),
    pa.field("node", pa.int64(), nullable=False),
    pa.field("token_id", pa.int64(), nullable=False),
    pa.field("parent", pa.int64(), nullable=False),
    pa.field("depth", pa.int64(), nullable=False),
    pa.field("path_log_prob", pa.float64(), nullable=False),
    pa.field("target_log_prob", pa.float32()),                  # null on a step without a trace
    pa.field("target_top_ids", _ids),
    pa.field("target_top_log_probs", pa.list_(pa.float32())),
])

GROWTH = pa.schema([
    pa.field("step", pa.int64(), nullable=False),
    pa.field("pop", pa.int64(), nullable=False),                # from 1; 0 would be the root
    pa.field("token_id", pa.int64(), nullable=False),
    pa.field("parent", pa.int64(), nullable=False),
    pa.field("depth", pa.int64(), nullable=False),
    pa.field("rank", pa.int64(), nullable=False),
    pa.field("path_log_prob", pa.float64(), nullable=False),
    pa.field("gain", pa.float64(), nullable=False),
    pa.field("price", pa.float64(), nullable=False),
    pa.field("bought", pa.bool_(), nullable=False),
    pa.field("dropped", pa.bool_(), nullable=False),
])

MARGINALS = pa.schema([
    pa.field("step", pa.int64(), nullable=False),
    pa.field("depth", pa.int64(), nullable=False),              # from 1
    pa.field("rank", pa.int64(), nullable=False),               # from 0, most probable first
    pa.field("token_id", pa.int64(), nullable=False),
    pa.field("log_prob", pa.float32(), nullable=False),
])

TABLES: dict[str, pa.Schema] = {
    "steps": STEPS, "nodes": NODES, "growth": GROWTH, "marginals": MARGINALS}

INFO_DEFAULTS: dict[str, object] = {
    "title": "",            # short name shown in lists
    "prompt": None,         # the text, or the list of chat messages, as it was given
    "prompt_ids": [],       # token ids fed to the target
    "pair": "",             # preset or "target + drafter"
    "method": "",           # registry name, e.g. "ddtree:16"
    "sampling": {},         # temperature, top_p, top_k, max_new_tokens, stop_token_ids, seed
    "device": "",
    "dtype": "",
    "dtype_why": "",        # why the target ran in it, in a few words
    "versions": {},         # package -> version
    "calibration": None,    # the calibration used, as JSON, or None
    "yardstick": None,      # {"tokens_per_second", "run_id"} of plain decoding, when measured
    "finish_reason": None,  # "stop", "length", "context", "cancelled", "killed", "failed"
    "totals": {},           # see bastion.records.totals.run_totals
    "text": "",             # the whole output as text
    "prompt_set": "",       # name of the prompt set the prompt came from, e.g. "gsm8k"
    "prompt_id": "",        # its id there
    "group": None,          # {"kind": "race" or "benchmark", "id", ...} of a run that belongs to one
}
"""Keys that `run.json` always holds, with what stands there when the caller says nothing. The
writer adds `schema_version`, `id`, `created` (ISO, UTC), `complete` and `vocabulary`
({token id as text: text} for every id that occurs in the run). Further keys are kept as given."""

RESERVED_KEYS = frozenset({"schema_version", "id", "created", "complete", "vocabulary", "totals",
                           "prompt_ids", "finish_reason", "text"})
"""Keys that only the writer sets; `RunStore.attach` refuses them."""
