"""Compare as a script: what its form asks for, what the address holds, what it says when something is missing."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import bastion.jobs.job_manager as manager_module
from bastion.jobs import EXAMPLES, JobManager
from bastion.jobs.racing import RaceRequest, start_race
from bastion.records import RunStore
from bastion.records.races import RaceStore

from tests.counting_engine import CountingEngine
from tests.synthetic_runs import make_info, make_run, text_of

ROOT = Path(__file__).resolve().parents[1]
NASTY = "[link](javascript:alert(1)) <img src=x onerror=alert(1)> `code` $x^2$ **b** :smile: مرحبا \u202eabc\u202c 🐑"


@pytest.fixture
def engine():
    return CountingEngine()


@pytest.fixture
def jobs(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    made = JobManager(engine, RunStore())
    monkeypatch.setattr(manager_module, "_manager", made)
    monkeypatch.setattr("pages.parts.fetch.model_ready", lambda: True)
    yield made
    engine.release_all()
    made.close()


def app(**query) -> AppTest:
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300)
    test.run()
    for name, value in query.items():
        test.query_params[name.replace("_", "-")] = value
    test.switch_page("pages/compare.py")
    return test.run()


def button(test: AppTest, label: str):
    return next(b for b in test.button if b.label == label)


def words(test: AppTest) -> str:
    shown = [*test.caption, *test.markdown, *test.error, *test.info, *test.warning]
    tables = [element.proto.body for element in test.get("html")]
    return "\n".join([*(c.value for c in shown), *tables]).replace("\\", "")


def held(test: AppTest, name: str) -> list[str]:
    """What the address holds under a name."""
    value = test.query_params[name]
    return [value] if isinstance(value, str) else list(value)


def finished(jobs, race_id):
    for _ in range(2000):
        if jobs.view(race_id).final:
            return
        time.sleep(0.01)
    raise AssertionError(jobs.view(race_id))


def saved(jobs, run_id="", **info) -> str:
    writer = jobs.store.create(make_info(**info), run_id=run_id or None, text_of=text_of)
    for record in make_run(3, seed=len(jobs.store.list())):
        writer.append(record)
    return writer.finish("length")


def test_the_empty_page_says_what_to_do_and_offers_what_is_built(jobs):
    test = app()
    assert not test.exception and test.title[0].value == "Compare"
    assert test.subheader[0].value == "Type a prompt, choose the methods, and press Start"
    assert test.multiselect(key="race-methods").value == ["ar", "dflash", "ddtree:16", "bastion"]
    from bastion.decoding.methods import resolve_method
    options = test.multiselect(key="race-methods").options
    assert [resolve_method(name).name for name in options] == list(options) and {"ar", "ddtree:8", "ddtree:32"} <= set(options)
    assert not button(test, "Start").disabled and button(test, "Stop").disabled
    test.button_group[0].set_value(EXAMPLES[2].name).run()
    assert test.text_area(key="race-prompt").value == EXAMPLES[2].prompt


def test_start_asks_for_what_the_form_says_and_the_address_holds_race_and_form(jobs, engine):
    test = app()
    test.text_area(key="race-prompt").set_value("Count")
    test.multiselect(key="race-methods").set_value(["bastion", "ddtree:12"])
    test.number_input(key="race-repeats").set_value(2)
    test.number_input(key="race-tokens").set_value(9)
    test.number_input(key="race-temperature").set_value(0.5)
    test.number_input(key="race-seed").set_value(4)
    engine.hold("load")
    button(test, "Start").click()
    test.run()
    assert not test.exception and not test.error
    race_id = held(test, "race-id")[0]
    engine.reached("load")
    race = jobs.view(race_id).request
    assert (race.prompt, race.methods, race.repeats, race.yardstick_added) == ("Count", ("ar", "bastion", "ddtree:12"), 2, True)
    assert race.sampling == {"temperature": 0.5, "top_p": 1.0, "top_k": 0, "max_new_tokens": 9, "seed": 4, "acceptance": "walk"}
    test.run()
    assert button(test, "Start").disabled and not button(test, "Stop").disabled
    engine.release("load")
    finished(jobs, race_id)
    test.run()
    text = words(test)
    assert "Done: 6 decodes." in text and "Plain decoding was not chosen and runs as the yardstick" in text
    assert "the texts are expected to differ" in text and "same text as ar" not in text
    links = [e.proto for e in test.get("page_link") if e.proto.page == "explore"]
    assert len(links) == 6 and all(any(f"run={run.id}" in link.query_string for link in links) for run in jobs.store.list())


def test_the_table_says_that_greedy_texts_agree(jobs):
    race_id = start_race(RaceRequest("ab", ("ar", "bastion"), 2, max_new_tokens=7))
    finished(jobs, race_id)
    text = words(app(race_id=race_id))
    assert "All texts are the same as plain decoding's, token for token." in text
    assert "3.00x" in text and 'data-lane="bastion"' in text      # three tokens a step of the same length


def test_one_repeat_is_replayed_and_another_can_be_chosen(jobs):
    race_id = start_race(RaceRequest("ab", ("ar", "bastion"), 2, max_new_tokens=7))
    finished(jobs, race_id)
    test = app(race_id=race_id)
    choice = test.button_group(key="race-replay")
    assert choice.options == ["repeat 1, nearest the medians", "repeat 2"] and "All lanes are of repeat 1. Against plain decoding in it: bastion 3.00x." in words(test)
    choice.set_value("2").run()
    assert not test.exception and "All lanes are of repeat 2." in words(test)
    other = start_race(RaceRequest("cd", ("ar", "bastion"), 1, max_new_tokens=7))
    finished(jobs, other)
    test.query_params["race-id"] = other
    test.run()
    assert not test.exception and "All lanes are of repeat" not in words(test)     # there is one
    assert not app(race_id=race_id, race_replay="each method's median repeat").exception     # a link of before


def test_texts_of_decodes_that_were_cut_are_not_judged(jobs):
    first = saved(jobs, "one", method="ar")
    writer = jobs.store.create(make_info(method="bastion"), run_id="cut", text_of=text_of)
    writer.append(make_run(1)[0])
    writer.finish("cancelled")
    text = words(app(race_runs=[first, "cut"]))
    assert "No whole repeat yet, so not judged: bastion." in text and "the same as plain" not in text and "no whole repeat" in text


def test_stop_keeps_what_is_there_and_the_rest_can_be_decoded(jobs, engine):
    race_id = start_race(RaceRequest("ab", ("ar", "bastion"), 1, max_new_tokens=40))
    engine.hold("ar 12")
    engine.reached("ar 12")
    test = app(race_id=race_id)
    assert not test.exception and "ar \\(" in "".join(p.text for p in (e.proto for e in test.get("progress")))
    button(test, "Stop").click()
    test.run()
    engine.release("ar 12")
    finished(jobs, race_id)
    test.run()
    assert "of 2 decodes are done." in words(test) and not test.exception
    button(test, "Decode the rest").click()
    test.run()
    finished(jobs, race_id)
    test.run()
    assert "Done: 2 decodes." in words(test)


@pytest.mark.parametrize("methods, prompt, said", [
    (["warp"], "a", "There is no method 'warp'; choose one of"),
    (["ddtree"], "a", "such as ddtree:16"),
    (["ar"], " ", "The prompt is empty"),
    ([], "a", "Choose at least one method"),
])
def test_what_cannot_be_raced_is_refused_in_one_sentence(jobs, methods, prompt, said):
    test = app()
    test.text_area(key="race-prompt").set_value(prompt)
    test.multiselect(key="race-methods").set_value(methods)
    button(test, "Start").click()
    test.run()
    assert not test.exception and said in test.error[0].value.replace("\\", "") and "race-id" not in test.query_params
    assert jobs.waiting() == 0


def test_a_prompt_that_does_not_fit_says_so_and_the_form_keeps_it(jobs):
    test = app()
    test.text_area(key="race-prompt").set_value("x" * 1001)
    button(test, "Start").click()
    test.run()
    finished(jobs, held(test, "race-id")[0])
    test.run()
    assert not test.exception and "shorten it" in words(test) and test.text_area(key="race-prompt").value == "x" * 1001


def test_saved_runs_are_raced_without_decoding_and_what_differs_is_said(jobs):
    first, second = saved(jobs, "one", method="ar"), saved(jobs, "two", method="bastion")
    third = saved(jobs, "three", method="bastion", device="cuda:0", prompt="Other")
    test = app(race_runs=[first, second])
    assert not test.exception and not test.warning and 'data-lane="bastion"' in words(test)
    test = app(race_runs=[first, second, third, "gone"])
    text = words(test)
    assert not test.exception and "The prompts differ: How many sheep? (ar, bastion); Other (bastion)." in text
    assert "The devices differ: cpu (ar, bastion); cuda:0 (bastion)." in text and "There is no run gone" in text
    assert jobs.waiting() == 0 and len(jobs.store.list()) == 3


def test_a_race_that_does_not_exist_is_one_sentence(jobs):
    for race_id, said in (("nothing", "There is no race nothing"), ("../../x", "is not a run id")):
        test = app(race_id=race_id)
        assert not test.exception and said in words(test)


def test_nasty_prompts_and_methods_from_outside_are_text(jobs):
    run = saved(jobs, method=NASTY[:60], prompt=NASTY, pair=NASTY)
    test = app(race_runs=[run, saved(jobs, method="ar", prompt=NASTY, pair=NASTY)])
    html = "".join(element.proto.body for element in test.get("html"))
    assert not test.exception and "<img" not in html
    race_id = start_race(RaceRequest(NASTY, ("ar",), 1, max_new_tokens=4))
    finished(jobs, race_id)
    test = app(race_id=race_id)
    assert not test.exception and test.text_area(key="race-prompt").value == NASTY


def test_a_race_comes_back_after_a_look_at_another_page_and_brings_its_form(jobs):
    race_id = start_race(RaceRequest("ab", ("dflash", "ddtree:9"), 1, max_new_tokens=5, seed=3))
    finished(jobs, race_id)
    test = app(race_id=race_id)
    assert test.text_area(key="race-prompt").value == "ab" and test.multiselect(key="race-methods").value == ["dflash", "ddtree:9"]
    assert [test.number_input(key=f"race-{name}").value for name in ("repeats", "tokens", "seed")] == [1, 5, 3]
    test.switch_page("pages/terms.py").run()
    test.query_params.clear()
    test.switch_page("pages/compare.py").run()
    assert not test.exception and held(test, "race-id") == [race_id] and "Done: 3 decodes." in words(test)
    (RaceStore().root / f"{race_id}.json").unlink()     # deleted meanwhile
    jobs._jobs.clear()
    test.switch_page("pages/terms.py").run()
    test.query_params.clear()
    test.switch_page("pages/compare.py").run()
    assert not test.exception and not test.error and "race-id" not in test.query_params
    test.run()
    assert not test.exception


def test_earlier_races_are_listed_with_what_is_missing(jobs):
    for prompt in ("first", "second"):
        finished(jobs, start_race(RaceRequest(prompt, ("ar",), 2, max_new_tokens=3)))
    race = RaceStore().list()[0]
    jobs.store.delete(race.slots()[1].run_id)
    labels = [e.proto.label.replace("\\", "") for e in links_to_races(app())]
    assert any("first" in label for label in labels) and any(race.prompt in label and "(1 of 2)" in label for label in labels)


def links_to_races(test: AppTest):
    return [e for e in test.get("page_link") if e.proto.page == "compare"]


VIEWER = """
    import sys
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("torch", "transformers"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Absent())
    import importlib.util
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name in ("torch", "transformers") else find(name, *rest)
    from streamlit.testing.v1 import AppTest
    test = AppTest.from_file("app.py", default_timeout=300).run()
    test.query_params["race-runs"] = ["one", "two"]
    test.switch_page("pages/compare.py").run()
    assert not test.exception, test.exception
    assert "install torch" in test.info[0].value, test.info
    assert not test.text_area and any("race-table" in e.proto.body for e in test.get("html"))
    assert "torch" not in sys.modules
    print("viewed")
"""


def test_without_torch_saved_runs_are_raced_and_the_form_says_what_to_install(jobs, tmp_path):
    saved(jobs, "one", method="ar")
    saved(jobs, "two", method="bastion")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(VIEWER)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().endswith("viewed"), done.stderr[-3000:]
