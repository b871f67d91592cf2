"""A process killed in the middle of a decode leaves every finished step readable."""

import os
import signal
import subprocess
import sys

from bastion.records import RunStore
from bastion.records.streams import stream_path
from tests.synthetic_runs import make_info, make_run, same_step, text_of

KILLED = """
import os, signal, sys
from bastion.records import RunStore
from tests.synthetic_runs import make_info, make_run, text_of
writer = RunStore(sys.argv[1]).create(make_info(), run_id="killed", text_of=text_of)
for record in make_run(5, seed=9)[:4]:
    writer.append(record)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_sigkill_leaves_every_finished_step(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)])
    assert done.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == [".killed.partial"]
    run = RunStore(tmp_path).open("killed")
    assert not run.complete and len(run.steps) == 4
    assert all(map(same_step, run.steps, make_run(5, seed=9)))
    assert run.text_of(run.output_ids[1]) == text_of(run.output_ids[1:2])[0]
    assert run.info["finish_reason"] == "killed"
    (listed,) = RunStore(tmp_path).list()
    assert (listed.id, listed.finish_reason) == ("killed", "killed")
    totals = run.info["totals"]
    assert (listed.tokens, listed.tau, listed.tokens_per_second) == (totals["tokens"], totals["tau"], totals["tokens_per_second"])


def test_wherever_a_stream_is_cut_the_steps_before_it_are_whole(tmp_path):
    """The steps cut at every 97th byte: never an error, never a step that was not appended."""
    records = make_run(3, seed=4, nodes=4, choices=3, beyond=2)
    store = RunStore(tmp_path)
    writer = store.create(make_info(), text_of=text_of)
    for record in records:
        writer.append(record)
    writer.close()
    folder = tmp_path / f".{writer.id}.partial"
    path = stream_path(folder, "steps")
    whole, seen = path.read_bytes(), set()
    for length in (*range(0, len(whole), 97), len(whole)):
        path.write_bytes(whole[:length])
        run = store.open(writer.id)
        assert all(map(same_step, run.steps, records))
        seen.add(len(run.steps))
    assert seen == {0, 1, 2, 3, 4}


def test_rows_written_ahead_of_their_step_are_left_out(tmp_path):
    """Killed between the nodes of a step and its row in `steps`."""
    records = make_run(3, seed=4)
    store = RunStore(tmp_path)
    writer = store.create(make_info(), text_of=text_of)
    for record in records[:3]:
        writer.append(record)
    size = stream_path(tmp_path / f".{writer.id}.partial", "steps").stat().st_size
    writer.append(records[3])
    writer.close()
    path = stream_path(tmp_path / f".{writer.id}.partial", "steps")
    path.write_bytes(path.read_bytes()[:size])
    run = store.open(writer.id)
    assert len(run.steps) == 3 and all(map(same_step, run.steps, records))
