"""The pair chosen in the sidebar: what runs asks for it, on every page, and a saved race brings its own."""

import dataclasses

import pytest

from bastion.errors import UserError
from bastion.jobs import DecodeRequest, PairChoice
from bastion.jobs.calibrating import JOB_ID as CALIBRATION
from bastion.jobs.pairs import memory_words, offered_pairs
from bastion.jobs.racing import RaceRequest, start_race
from pages.parts.pair import OTHER

from tests.test_app import app, button, engine, finished, jobs, words  # noqa: F401


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    monkeypatch.delenv("BASTION_DTYPE")


def test_large_pairs_are_announced_with_their_memory_and_small_ones_are_not():
    assert [offer.name for offer in offered_pairs()][0] == "smollm2-135m"
    assert memory_words(PairChoice(), "cpu") == ""
    on_cpu, on_gpu = (memory_words(PairChoice("qwen3-8b"), device) for device in ("cpu", "cuda:0"))
    assert "in float32" in on_cpu and "in bfloat16" in on_gpu and on_gpu.startswith("needs about ")
    assert memory_words(PairChoice(None, "somebody/of-unknown-size"), "cpu") == ""


def test_a_choice_without_a_target_is_refused_in_one_sentence(jobs):  # noqa: F811
    with pytest.raises(UserError, match="No target is named"):
        jobs.submit(DecodeRequest("hello", pair=PairChoice(None, " ")))


def test_the_pair_of_the_sidebar_is_decoded_raced_and_calibrated(jobs):  # noqa: F811
    test = app()
    test.selectbox(key="pair").set_value("qwen3-4b").run()
    assert "Needs about 1" in words(test) and "fetched at the first use" in words(test)
    test.text_area(key="prompt").set_value("Hello").run()
    button(test, "Decode").click().run()
    assert jobs.view(test.query_params["run"]).request.pair == PairChoice("qwen3-4b")

    test.switch_page("pages/latency.py").run()
    assert not test.exception and test.selectbox(key="pair").value == "qwen3-4b"
    test.selectbox(key="pair").set_value(OTHER).run()
    test.button(key="latency-start").click().run()
    assert "No target is named" in words(test) and not test.exception

    test.text_input(key="pair-target").set_value(" some/model ").run()
    test.text_input(key="pair-drafter").set_value("/folders/drafter").run()
    test.selectbox(key="pair-dtype").set_value("bfloat16").run()
    custom = PairChoice(None, "some/model", "/folders/drafter", dtype="bfloat16")
    test.button(key="latency-start").click().run()
    assert jobs.view(CALIBRATION).request.pair == custom

    test.switch_page("pages/compare.py").run()
    test.text_area(key="race-prompt").set_value("Hello").run()
    button(test, "Start").click().run()
    assert jobs.view(test.query_params["race-id"]).request.pair == dataclasses.asdict(custom)


def test_a_race_opened_by_its_link_brings_its_pair_unless_one_was_chosen_by_hand(jobs):  # noqa: F811
    asked = PairChoice("qwen3-8b", dtype="float16")
    race_id = start_race(RaceRequest("Hello", ("ar",), 1, max_new_tokens=2, pair=asked), jobs)
    finished(jobs, race_id)
    test = app().switch_page("pages/compare.py")
    test.query_params["race-id"] = race_id
    test.run()
    assert not test.exception and (test.selectbox(key="pair").value, test.selectbox(key="pair-dtype").value) == ("qwen3-8b", "float16")
    test.selectbox(key="pair").set_value("smollm2-135m").run()
    assert test.selectbox(key="pair").value == "smollm2-135m"
    test.switch_page("pages/terms.py").run()
    test.switch_page("pages/compare.py").run()
    assert test.selectbox(key="pair").value == "smollm2-135m"
