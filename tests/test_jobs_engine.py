"""Jobs on a tiny random pair loaded from folders: the real loop, calibration, tokenizer and store together."""

import gc
import re
import time

import pytest

from bastion.decoding import METHODS, decode
from bastion.jobs import DecodeRequest, JobManager, PairChoice
from bastion.jobs.engine import DecodingEngine, resolved
from bastion.jobs.offers import engine_missing, offered_methods
from bastion.records import RunStore

from tests.tiny_folders import write_drafter, write_target


@pytest.fixture(scope="module")
def choice(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return PairChoice(None, str(write_target(folder / "target")), str(write_drafter(folder / "drafter")), "cpu", "float32")


@pytest.fixture(scope="module")
def engine():
    return DecodingEngine()


@pytest.fixture
def jobs(engine, tmp_path):
    made = JobManager(engine, RunStore(tmp_path))
    yield made
    made.close()


def finished(jobs, job_id):
    for _ in range(12_000):
        if not jobs.view(job_id).live:
            return jobs.view(job_id)
        time.sleep(0.01)
    raise AssertionError(jobs.view(job_id))


def test_the_first_adaptive_decode_calibrates_and_its_run_is_what_decode_gives(jobs, engine, choice, tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))  # no calibration there, whatever ran before this test
    request = DecodeRequest("Hello, tree 🌳", pair=choice, max_new_tokens=24, max_nodes=12)
    view = finished(jobs, jobs.submit(request))
    assert view.state == "done", view.error
    states = [e.data["state"] for e in jobs.events(view.id) if e.kind == "state"]
    assert states == ["loading model", "calibrating", "decoding", "done"]
    assert view.calibration["peaks_source"] == "measured" and view.calibration["calibrated_rmse"] >= 0

    run, pair = jobs.store.open(view.id), engine.load(choice)
    expected = list(decode(pair, run.info["prompt"], method=resolved(request), max_new_tokens=24))
    plain = list(decode(pair, run.info["prompt"], method="ar", max_new_tokens=24))
    assert run.output_ids == [t for s in expected for t in s.emitted] == [t for s in plain for t in s.emitted]
    assert run.prompt_ids == pair.tokenizer.encode_prompt("Hello, tree 🌳")
    assert all(1 <= s.nodes <= 12 for s in run.steps[1:])
    shown = {int(i) for s in run.steps if s.trace for i in [*s.token_ids, *s.trace.target_top_ids.ravel()]}
    assert all(run.vocabulary[str(i)] == pair.tokenizer.token_texts([i])[0] for i in shown)
    assert run.info["drafter_depth"] == 5 and run.info["calibration"]["made_at"] == view.calibration["made_at"]
    assert view.yardstick.state == "measured" and view.yardstick.tokens == len(run.output_ids) - 1
    assert run.info["yardstick"]["tokens_per_second"] == pytest.approx(view.yardstick.tokens_per_second)

    again = finished(jobs, jobs.submit(request))
    assert "calibrating" not in [e.data["state"] for e in jobs.events(again.id) if e.kind == "state"]


def test_a_pair_is_loaded_once_and_its_objects_leave_the_collector(engine, choice):
    pair = engine.load(choice)
    assert engine.load(choice) is pair and engine.loaded(choice) and gc.get_freeze_count() > 0
    assert engine.device(choice) == "cpu"


def test_seeded_sampling_gives_the_same_run_twice(jobs, choice):
    request = DecodeRequest("Sample", "ddtree:7", choice, temperature=0.9, top_p=0.9, top_k=50, seed=5,
                            max_new_tokens=16, yardstick=False)
    runs = [jobs.store.open(finished(jobs, jobs.submit(request)).id) for _ in range(2)]
    assert runs[0].output_ids == runs[1].output_ids and runs[0].info["sampling"]["seed"] == 5
    assert all(s.nodes <= 8 for s in runs[0].steps)


@pytest.mark.parametrize(("change", "words"), [
    ({"prompt": "long " * 200}, "takes 255 at most"),
    ({"method": "small-lm:16"}, "small language model .* --small-lm"),
    ({"method": "magic"}, "There is no method 'magic'"),
])
def test_what_cannot_be_decoded_is_one_sentence(jobs, choice, change, words):
    view = finished(jobs, jobs.submit(DecodeRequest(**{"prompt": "Hello", "pair": choice, **change})))
    assert view.state == "failed" and "\n" not in view.error
    assert re.search(words, view.error)


def test_a_target_alone_decodes_plainly_and_says_what_trees_need(jobs, choice):
    alone = PairChoice(None, choice.target, None, "cpu", "float32")
    assert finished(jobs, jobs.submit(DecodeRequest("Hi", "ar", alone, max_new_tokens=4))).state == "done"
    view = finished(jobs, jobs.submit(DecodeRequest("Hi", "dflash", alone, max_new_tokens=4)))
    assert view.state == "failed" and "needs a drafter" in view.error


def test_the_offers_are_the_built_methods_of_the_registry():
    offers = offered_methods()
    assert [o.name for o in offers] == [name for name, entry in METHODS.items() if entry.build is not None]
    assert [o.name for o in offers if o.adaptive] == ["bastion", "bastion+ngram"]
    assert [o.label for o in offers if o.argument][:2] == ["ddtree:N", "beam:N"] and engine_missing() == ""
    assert {o.argument for o in offers} == {None, "N", "a,b,c", "R"}   # what the form has a field for
