"""Races as jobs, against an engine that counts: order, what is saved, stopping, resuming, being killed, refusals."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from bastion.errors import UserError
from bastion.jobs import JobManager
from bastion.jobs.race_shown import show_race
from bastion.jobs.racing import RaceRequest, resume_race, start_race
from bastion.records import RunStore
from bastion.records.races import RaceStore, finished_slots, new_race, shuffled_order

from tests.counting_engine import STEP_SECONDS, CountingEngine

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def engine():
    return CountingEngine()


@pytest.fixture
def races(tmp_path):
    return RaceStore(tmp_path / "races")


@pytest.fixture
def jobs(engine, tmp_path):
    manager = JobManager(engine, RunStore(tmp_path / "runs"))
    yield manager
    engine.release_all()
    manager.close()


def wait(jobs, race_id):
    for _ in range(2000):
        view = jobs.view(race_id)
        if view.final:
            return view
        time.sleep(0.01)
    raise AssertionError(jobs.view(race_id))


def watch(engine):
    """Every decode the engine is asked for, as (method, tokens)."""
    seen, decode = [], engine.decode

    def listening(pair, prompt_ids, request, on_read):
        seen.append((request.method, request.max_new_tokens, request.seed, request.temperature))
        return decode(pair, prompt_ids, request, on_read)

    engine.decode = listening
    return seen


def test_a_race_warms_up_then_decodes_every_method_once_a_repeat_in_the_recorded_order(jobs, engine, races):
    seen = watch(engine)
    race_id = start_race(RaceRequest("ab", ("dflash", "ddtree:8", "bastion"), 3, max_new_tokens=12, seed=5), jobs, races)
    assert wait(jobs, race_id).state == "done"
    race = races.open(race_id)
    assert race.methods == ("ar", "dflash", "ddtree:8", "bastion") and race.yardstick_added and race.repeats == 3
    assert race.order == shuffled_order(race.methods, 3, race.order_seed)
    assert seen[:4] == [(m, 8, 5, 0.0) for m in dict.fromkeys(race.order[0])]      # warm-up, once each
    assert seen[4:] == [(m, 12, 5, 0.0) for repeat in race.order for m in repeat]
    assert len(jobs.store.list()) == 12 == finished_slots(race, jobs.store) and engine.closed == 16
    for slot in race.slots():
        run = jobs.store.open(slot.run_id)
        assert run.info["group"] == {"kind": "race", "id": race_id, "repeat": slot.repeat, "order": slot.order}
        assert run.info["method"] == slot.method == race.order[slot.repeat - 1][slot.order - 1]
        assert run.complete and run.output_ids == list(range(195, 207))
        plain = f"{race_id}-r{slot.repeat}-{race.order[slot.repeat - 1].index('ar') + 1}"
        expected = None if slot.method == "ar" else {"method": "ar", "run_id": plain, "tokens_per_second": 1 / STEP_SECONDS}
        assert run.info["yardstick"] == expected
    shown = show_race(race_id, jobs, races)
    assert shown.left == 0 and shown.words == "Done: 12 decodes." and [row.label for row in shown.rows] == list(race.methods)
    assert all(row.identical == 3 for row in shown.rows)


def test_orders_are_drawn_anew_and_repeat_for_the_same_seed():
    methods = ("ar", "dflash", "ddtree:8", "bastion")
    order = shuffled_order(methods, 40, 7)
    assert order == shuffled_order(methods, 40, 7) != shuffled_order(methods, 40, 8)
    assert all(sorted(repeat) == sorted(methods) for repeat in order)
    firsts = [repeat[0] for repeat in order]
    assert set(firsts) == set(methods) and len(set(order)) > 10


def test_a_running_race_says_where_it_is_and_what_is_known(jobs, engine, races):
    engine.hold("bastion 3")
    race_id = start_race(RaceRequest("ab", ("ar", "bastion"), 2, max_new_tokens=30), jobs, races)
    engine.reached("bastion 3")      # the warm-up ends before: 8 tokens are the prefill's and three steps', here the third
    engine.release("bastion 3")
    engine.hold("bastion 4")
    engine.reached("bastion 4")
    view, shown = jobs.view(race_id), show_race(race_id, jobs, races)
    place = races.open(race_id).order[0].index("bastion") + 1
    assert shown.live and f"Repeat 1 of 2: bastion ({place} of 4), 10 of at most 30 tokens, at most" in shown.words
    assert view.progress.share == pytest.approx((place - 1 + 10 / 30) / 4)
    assert shown.now["method"] == "bastion" and shown.left == 4 - (place - 1)
    now = [point for point in shown.points if point.lane == "bastion"]
    assert now[0].speedup == pytest.approx(3.0) and now[0].provisional
    engine.release("bastion 4")
    wait(jobs, race_id)


def test_stopping_keeps_what_is_decoded_and_the_rest_can_be_decoded_later(jobs, engine, races):
    seen = watch(engine)
    race_id = start_race(RaceRequest("ab", ("ar", "dflash", "bastion"), 2, max_new_tokens=20), jobs, races)
    engine.hold("dflash 5")     # past the warm-up
    engine.reached("dflash 5")
    jobs.cancel(race_id)
    engine.release("dflash 5")
    assert wait(jobs, race_id).state == "cancelled"
    race = races.open(race_id)
    done = race.order[0].index("dflash")
    shown = show_race(race_id, jobs, races)
    assert not shown.live and shown.left == 6 - done and f"Stopped. {done} of 6 decodes are done." == shown.words
    cut = jobs.store.open(f"{race_id}-r1-{done + 1}")
    assert cut.info["finish_reason"] == "cancelled" and "dflash" in [row.label for row in shown.rows]
    before = {s.id: jobs.store.open(s.id).info["created"] for s in jobs.store.list() if s.finish_reason == "length"}
    kept = {run_id: (jobs.store.root / run_id / "steps.parquet").stat().st_mtime_ns for run_id in before}

    del seen[:]
    assert resume_race(race_id, jobs, races) == race_id
    assert wait(jobs, race_id).state == "done" and races.open(race_id) == race
    decoded = [method for method, tokens, *_ in seen if tokens == 20]
    assert decoded == [m for repeat in race.order for m in repeat][done:]
    assert {run_id: (jobs.store.root / run_id / "steps.parquet").stat().st_mtime_ns for run_id in kept} == kept
    assert show_race(race_id, jobs, races).left == 0


def test_a_waiting_race_that_is_stopped_leaves_nothing(jobs, engine, races):
    engine.hold("load")
    first = start_race(RaceRequest("ab", ("ar",), 1, max_new_tokens=4), jobs, races)
    engine.reached("load")
    second = start_race(RaceRequest("cd", ("ar",), 1, max_new_tokens=4), jobs, races)
    assert show_race(second, jobs, races).words == "Waiting: 1 ahead of you"
    jobs.cancel(second)
    engine.release("load")
    wait(jobs, first)
    assert [race.id for race in races.list()] == [first] and len(jobs.store.list()) == 1
    assert show_race(second, jobs, races).words == "Stopped."


KILLED = """
    import sys
    from pathlib import Path
    from bastion.jobs import JobManager
    from bastion.jobs.racing import RaceRequest, start_race
    from bastion.records import RunStore
    from bastion.records.races import RaceStore
    from tests.counting_engine import CountingEngine
    home = Path(sys.argv[1])
    engine = CountingEngine()
    engine.hold("bastion 5")
    jobs = JobManager(engine, RunStore(home / "runs"))
    race_id = start_race(RaceRequest("ab", ("ar", "dflash", "bastion"), 2, max_new_tokens=20), jobs, RaceStore(home / "races"))
    engine.reached("bastion 5")
    print(race_id, flush=True)
    __import__("signal").pause()
"""


def test_a_race_whose_process_was_killed_goes_on_without_redoing_a_finished_decode(jobs, engine, races, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE,
                               text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    race_id = process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    race = races.open(race_id)
    done = race.order[0].index("bastion")
    shown = show_race(race_id, jobs, races)
    assert not shown.live and shown.left == 6 - done and finished_slots(race, jobs.store) == done
    kept = {slot.run_id: jobs.store.open(slot.run_id).info["created"] for slot in race.slots()[:done]}
    assert jobs.store.open(f"{race_id}-r1-{done + 1}").info["finish_reason"] == "killed"
    rows = {row.label: row for row in shown.rows}
    assert rows["bastion"].repeats == 0 and rows["bastion"].identical is None
    assert all(row.repeats == 1 for label, row in rows.items() if label != "bastion")
    seen = watch(engine)
    resume_race(race_id, jobs, races)
    assert wait(jobs, race_id).state == "done"
    assert [m for m, tokens, *_ in seen if tokens == 20] == [m for repeat in race.order for m in repeat][done:]
    assert {run_id: jobs.store.open(run_id).info["created"] for run_id in kept} == kept
    assert all(jobs.store.open(slot.run_id).info["finish_reason"] == "length" for slot in race.slots())


@pytest.mark.parametrize("request_, words", [
    (RaceRequest(" ", ("ar",)), "The prompt is empty"),
    (RaceRequest("a", ()), "Choose at least one method"),
    (RaceRequest("a", ("warp",)), "There is no method 'warp'; choose one of ar"),
    (RaceRequest("a", ("ddtree",)), "such as ddtree:16"),
    (RaceRequest("a", ("ar",), 0), "Repeat the race 1 to 20 times"),
    (RaceRequest("a", tuple(f"ddtree:{n}" for n in range(1, 10))), "8 lanes at most"),
    (RaceRequest("a", ("ar",), max_new_tokens=0), "at least 1 new token"),
])
def test_a_bad_request_is_refused_in_one_sentence_before_anything_is_queued(jobs, races, request_, words):
    with pytest.raises(UserError, match=words) as error:
        start_race(request_, jobs, races)
    assert "\n" not in str(error.value) and jobs.waiting() == 0 and races.list() == []


def test_one_method_written_in_two_ways_is_one_lane():
    assert RaceRequest("a", ("ddtree:8", " ddtree:08", "ar")).check().methods == ("ddtree:8", "ar")


def test_a_prompt_that_does_not_fit_fails_and_writes_nothing(jobs, races):
    race_id = start_race(RaceRequest("x" * 1001, ("ar",)), jobs, races)
    view = wait(jobs, race_id)
    assert view.state == "failed" and "shorten it" in view.error
    assert races.list() == [] and jobs.store.list() == []
    assert show_race(race_id, jobs, races).error == view.error


def test_a_method_that_fails_keeps_the_decodes_before_it(jobs, races):
    race_id = start_race(RaceRequest("ab", ("ar", "bastion"), 1, max_new_tokens=30, seed=13), jobs, races)
    view = wait(jobs, race_id)
    assert view.state == "failed" and "the device fell over" in view.error


@pytest.mark.parametrize("spoil, words", [
    (lambda v: v | {"version": 99}, "newer version"),
    (lambda v: v | {"order": [["ar"]]}, "order"),
    (lambda v: v | {"methods": "ar"}, "methods"),
    (lambda v: {k: x for k, x in v.items() if k != "prompt"}, "prompt"),
    (lambda v: [v], "no version"),
])
def test_a_damaged_race_file_is_one_sentence_and_not_listed(races, spoil, words):
    race = new_race("r1", "hello", ("ar", "bastion"), 2, 3, yardstick_added=False, sampling={"seed": 0}, pair={})
    races.save(race)
    assert races.open("r1") == race and races.list() == [race]
    path = races.root / "r1.json"
    path.write_text(json.dumps(spoil(json.loads(path.read_text()))))
    with pytest.raises(UserError, match=words):
        races.open("r1")
    assert races.list() == []
    with pytest.raises(UserError, match="There is no race"):
        races.open("r2")
    with pytest.raises(UserError, match="not a run id"):
        races.open("../r1")
