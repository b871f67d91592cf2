"""Jobs against an engine that counts: states, saving, stopping, the yardstick, two devices, failures."""

import time

import pytest

from bastion.errors import UserError
from bastion.jobs import DecodeRequest, JobManager, PairChoice
from bastion.jobs.shown import show
from bastion.records import RunStore

from tests.counting_engine import STEP_SECONDS, CountingEngine

@pytest.fixture
def engine():
    return CountingEngine()


@pytest.fixture
def jobs(engine, tmp_path):
    manager = JobManager(engine, RunStore(tmp_path))
    yield manager
    engine.release_all()
    manager.close()


def wait(jobs, job_id, until=lambda view: not view.live):
    for _ in range(2000):
        view = jobs.view(job_id)
        if until(view):
            return view
        time.sleep(0.01)
    raise AssertionError(f"still {jobs.view(job_id)}")


def test_a_decode_is_saved_step_by_step_then_whole_with_a_measured_yardstick(jobs, engine):
    engine.hold("bastion 3")
    job_id = jobs.submit(DecodeRequest("ab", max_new_tokens=12))
    engine.reached("bastion 3")
    partial = jobs.store.open(job_id)
    assert not partial.complete and [s.emitted for s in partial.steps] == [[195], [196, 197, 198], [199, 200, 201]]
    view = jobs.view(job_id)
    assert view.state == "decoding" and view.yardstick.state == "waiting" and len(view.steps) == 3
    assert view.progress.words == "7 of at most 12 tokens" and view.progress.share == pytest.approx(7 / 12)
    assert view.progress.seconds_left > 0
    engine.release("bastion 3")

    view = wait(jobs, job_id)
    assert view.state == "done" and view.yardstick.state == "measured"
    run = jobs.store.open(job_id)
    assert run.complete and run.output_ids == list(range(195, 207)) == [t for s in view.steps for t in s.emitted]
    assert run.info["finish_reason"] == "length" and run.vocabulary["200"] == view.vocabulary["200"] == "<200>"
    assert run.info["yardstick"] == {"method": "ar", "tokens": 11, "seconds": 11 * STEP_SECONDS,
                                     "tokens_per_second": 1 / STEP_SECONDS}
    assert engine.closed == 2 and engine.loads == 1


def test_events_tell_the_whole_story_once_and_in_order(jobs, engine):
    engine.needs_calibration = True
    job_id = jobs.submit(DecodeRequest("ab", max_new_tokens=7))
    wait(jobs, job_id)
    events = jobs.events(job_id)
    assert [e.number for e in events] == list(range(len(events)))
    assert [e.data["state"] for e in events if e.kind == "state"] == ["loading model", "calibrating", "decoding", "done"]
    assert [e.data.index for e in events if e.kind == "step"] == [0, 1, 2]
    assert [e.data["words"] for e in events if e.kind == "progress"] == [
        "probe 1 of 3", "probe 2 of 3", "probe 3 of 3", "Reading the prompt, 0 of 2 tokens", "1 of at most 7 tokens",
        "4 of at most 7 tokens", "7 of at most 7 tokens"]
    assert jobs.events(job_id, events[-2].number) == events[-2:] and jobs.events(job_id, len(events)) == []
    with pytest.raises(UserError, match="No job nothing"):
        jobs.events("nothing")


def test_jobs_on_one_device_wait_their_turn_and_the_yardstick_goes_behind_them(jobs, engine):
    engine.hold("bastion 1")
    first = jobs.submit(DecodeRequest("a", max_new_tokens=4))
    engine.reached("bastion 1")
    second = jobs.submit(DecodeRequest("b", method="dflash", max_new_tokens=4))
    third = jobs.submit(DecodeRequest("c", method="ar", max_new_tokens=4))
    assert [jobs.view(j).ahead for j in (first, second, third)] == [0, 1, 2]
    assert jobs.view(third).state == "queued" and jobs.waiting() == jobs.waiting("cpu") == 3
    assert show(third, jobs).words == "Waiting: 2 ahead of you"
    engine.hold("ar 1")
    engine.release("bastion 1")
    engine.reached("ar 1")     # the third job: plain decoding that was asked for
    assert jobs.view(first).state == jobs.view(second).state == "done"
    assert jobs.view(third).state == "decoding" and jobs.view(first).yardstick.state == "waiting"
    engine.release("ar 1")
    assert wait(jobs, first).yardstick.state == wait(jobs, second).yardstick.state == "measured"
    assert wait(jobs, third).yardstick.state == "none"


def test_two_devices_do_not_wait_for_each_other(jobs, engine):
    engine.hold("bastion 1")
    slow = jobs.submit(DecodeRequest("a", max_new_tokens=4))
    engine.reached("bastion 1")
    other = jobs.submit(DecodeRequest("b", method="ar", max_new_tokens=4, pair=PairChoice(device="cuda:0")))
    assert wait(jobs, other).state == "done" and jobs.view(slow).state == "decoding"
    assert (jobs.device(slow), jobs.device(other), jobs.device("elsewhere")) == ("cpu", "cuda:0", None)


def test_a_waiting_job_is_cancelled_at_once_and_leaves_nothing(jobs, engine):
    engine.hold("bastion 1")
    first = jobs.submit(DecodeRequest("a", max_new_tokens=4))
    engine.reached("bastion 1")
    second = jobs.submit(DecodeRequest("b", max_new_tokens=4))
    jobs.cancel(second)
    view = jobs.view(second)
    assert view.state == "cancelled" and not view.live and view.yardstick.state == "cancelled"
    assert jobs.waiting() == 1
    engine.release("bastion 1")
    wait(jobs, first)
    assert [s.id for s in jobs.store.list()] == [first]


def test_a_running_decode_stops_within_a_step_and_keeps_its_steps(jobs, engine):
    engine.hold("bastion 2")
    job_id = jobs.submit(DecodeRequest("ab", max_new_tokens=90))
    engine.reached("bastion 2")
    jobs.cancel(job_id)
    engine.release("bastion 2")
    view = wait(jobs, job_id)
    assert view.state == "cancelled" and view.yardstick.state == "cancelled" and 2 <= len(view.steps) <= 3
    run = jobs.store.open(job_id)
    assert run.complete and run.info["finish_reason"] == "cancelled" and len(run.steps) == len(view.steps)
    assert show(job_id, jobs).words == "Stopped after 7 tokens in 2 steps." and engine.closed == 1
    jobs.cancel(job_id)
    jobs.cancel("unknown")
    assert jobs.view(job_id).state == "cancelled"


@pytest.mark.parametrize("place", ["load", "probe 1", "read 2"])
def test_stopping_before_the_first_token_leaves_no_run(jobs, engine, place):
    engine.needs_calibration = True
    engine.hold(place)
    job_id = jobs.submit(DecodeRequest("a long prompt"))
    engine.reached(place)
    jobs.cancel(job_id)
    engine.release(place)
    assert wait(jobs, job_id).state == "cancelled" and jobs.store.list() == []
    assert show(job_id, jobs).words == "Stopped before the first token."


def test_stopping_the_yardstick_keeps_the_run(jobs, engine):
    engine.hold("ar 3")
    job_id = jobs.submit(DecodeRequest("ab", max_new_tokens=12))
    engine.reached("ar 3")
    view = jobs.view(job_id)
    assert view.state == "done" and view.live and view.yardstick.state == "measuring"
    assert view.yardstick.tokens == 2 and view.yardstick.seconds == 2 * STEP_SECONDS
    jobs.cancel(job_id)
    engine.release("ar 3")
    view = wait(jobs, job_id)
    assert view.state == "done" and view.yardstick.state == "cancelled"
    assert jobs.store.open(job_id).info["yardstick"] is None


@pytest.mark.parametrize(("request_", "words"), [
    (DecodeRequest("x" * 1001), "more tokens than the model allows"),
    (DecodeRequest("x", pair=PairChoice("missing")), "There is no model called missing; choose another."),
])
def test_what_a_person_can_mend_fails_in_their_words(jobs, request_, words):
    view = wait(jobs, jobs.submit(request_))
    assert view.state == "failed" and words in view.error and "\n" not in view.error
    assert view.yardstick.state == "cancelled" and jobs.store.list() == []


def test_an_unexpected_error_is_one_sentence_and_the_finished_steps_stay(jobs, engine, caplog):
    job_id = jobs.submit(DecodeRequest("ab", seed=13, max_new_tokens=30))
    view = wait(jobs, job_id)
    assert view.state == "failed" and len(view.steps) == 2
    assert view.error == ("It stopped because of an unexpected error (RuntimeError: the device fell over); "
                          "the log of the server has the details.")
    assert "the device fell over" in caplog.text and "Traceback" in caplog.text
    run = jobs.store.open(job_id)
    assert run.info["finish_reason"] == "failed" and run.info["note"] == view.error and len(run.steps) == 2
    assert wait(jobs, jobs.submit(DecodeRequest("next", max_new_tokens=4))).state == "done"


def test_a_bad_request_never_enters_the_queue(jobs):
    with pytest.raises(UserError, match="prompt is empty"):
        jobs.submit(DecodeRequest(" "))
    assert jobs.waiting() == 0


def test_a_finished_run_is_shown_alike_from_memory_and_after_a_restart(jobs, engine, tmp_path):
    job_id = jobs.submit(DecodeRequest("ab", max_new_tokens=12))
    wait(jobs, job_id)
    now, later = show(job_id, jobs), show(job_id, JobManager(engine, RunStore(tmp_path)))
    assert now.words == later.words == "Done: 12 tokens in 4 steps, as many as asked for."
    assert later.yardstick == now.yardstick == {"tokens_per_second": 1 / STEP_SECONDS, "measured": True}
    assert [s.emitted for s in later.steps] == [s.emitted for s in now.steps]
    assert dict(later.vocabulary) == dict(now.vocabulary) and later.prompt == now.prompt == "ab"
    assert (later.live, later.final, later.share) == (now.live, now.final, now.share) == (False, True, None)


def test_a_run_whose_process_died_says_that_it_was_interrupted(jobs, engine, tmp_path):
    engine.hold("bastion 3")
    job_id = jobs.submit(DecodeRequest("ab", max_new_tokens=12))
    engine.reached("bastion 3")
    other = show(job_id, JobManager(engine, RunStore(tmp_path)))   # as a new process would see it
    assert other.words.startswith("Interrupted: the server ended during this decode") and len(other.steps) == 3
    assert other.final and not other.live
