"""The object of `generate --json`."""

import json

import numpy as np
import pytest

from bastion.records import RunStore, run_to_json
from tests.synthetic_runs import decode, make_info, make_prefill, make_run, make_step, text_of

NAMED = {"text", "output_ids", "prompt_ids", "method", "pair", "device", "dtype", "temperature",
         "tau", "acceptance_lengths", "steps", "seconds_prefill", "seconds_decode",
         "tokens_per_second", "finish_reason"}
NAMED_IN_STEPS = {"kind", "emitted", "context", "root", "nodes", "token_ids", "parents", "depths",
                  "path_log_probs", "accepted", "bonus", "surrogate", "stop_reason", "seconds",
                  "predicted_verify_seconds"}


def test_it_holds_what_the_design_names(tmp_path):
    store = RunStore(tmp_path)
    records = make_run(4, seed=2)
    writer = store.create(make_info(), text_of=text_of, decode=decode)
    for record in records:
        writer.append(record)
    writer.finish("length")
    saved = run_to_json(store.open(writer.id))
    assert json.loads(json.dumps(saved, allow_nan=False)) == saved
    assert NAMED <= set(saved) and all(NAMED_IN_STEPS <= set(step) for step in saved["steps"])
    assert saved["text"] == decode(saved["output_ids"])
    assert saved["method"] == "bastion" and saved["temperature"] == 0.0
    assert saved["finish_reason"] == "length" and saved["prompt_ids"] == list(range(10, 22))
    lengths = [len(record.emitted) for record in records[1:]]
    seconds = sum(record.seconds.total for record in records[1:])
    assert saved["acceptance_lengths"] == lengths and saved["tau"] == sum(lengths) / 4
    assert saved["seconds_decode"] == pytest.approx(seconds, rel=1e-12)
    assert saved["seconds_prefill"] == pytest.approx(records[0].seconds.total, rel=1e-12)
    assert saved["tokens_per_second"] == pytest.approx(sum(lengths) / seconds, rel=1e-12)
    step, record = saved["steps"][2], records[2]
    assert step["parents"] == record.parents.tolist() and step["nodes"] == record.nodes == 16
    assert step["path_log_probs"] == record.path_log_probs.tolist()
    assert set(step["seconds"]) == {"draft", "build", "verify", "commit"}
    live = run_to_json(steps=records, info={**make_info(), "finish_reason": "length"},
                       text=saved["text"])
    assert {**live, "id": saved["id"]} == saved


def test_what_is_undefined_is_null():
    only_prefill = run_to_json(steps=[make_prefill()], info=make_info(), text="x")
    assert only_prefill["tau"] is None and only_prefill["tokens_per_second"] is None
    step = make_step(1)
    step.path_log_probs[1] = -np.inf
    odd = run_to_json(steps=[make_prefill(), step], info=make_info(), text="x")
    assert odd["steps"][1]["path_log_probs"][1] is None
    with pytest.raises(TypeError):
        run_to_json(steps=[make_prefill()])
