"""The pages as scripts: what they offer, what a click submits, what they say when something is missing."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import bastion.jobs.job_manager as manager_module
from bastion.errors import UserError
from bastion.jobs import EXAMPLES, DecodeRequest, JobManager, PairChoice
from bastion.jobs.shown import show
from bastion.records import RunStore

from tests.counting_engine import CountingEngine
from tests.synthetic_runs import make_info, make_run, text_of

ROOT = Path(__file__).resolve().parents[1]
NASTY = ["<img src=x onerror=alert(1)>", "مرحبا \u202eabc\u202c שלום", "🐑🧮👩‍👩‍👧 e\u0301", "a\x00b\x07c\x1b[31m",
         "[link](javascript:alert(1)) ![i](http://x.invalid/i.png) `code` $x^2$ :smile: **b**"]


@pytest.fixture
def engine():
    return CountingEngine()


@pytest.fixture
def jobs(engine, tmp_path, monkeypatch):
    made = JobManager(engine, RunStore(tmp_path))
    monkeypatch.setattr(manager_module, "_manager", made)
    monkeypatch.setattr("pages.parts.fetch.model_ready", lambda: True)
    yield made
    engine.release_all()
    made.close()


def app(**query) -> AppTest:
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300)
    for name, value in query.items():
        test.query_params[name] = value
    return test.run()


def button(test: AppTest, label: str):
    return next(b for b in test.button if b.label == label)


def words(test: AppTest) -> str:
    return "\n".join(c.value for c in [*test.caption, *test.markdown, *test.error, *test.info]).replace("\\", "")


def finished(jobs, job_id):
    import time
    for _ in range(2000):
        if not jobs.view(job_id).live:
            return jobs.view(job_id)
        time.sleep(0.01)
    raise AssertionError(jobs.view(job_id))


def test_the_empty_page_says_what_to_do_and_offers_eight_examples(jobs):
    test = app()
    assert not test.exception and test.subheader[0].value.startswith("Type a prompt and press Decode")
    pills = test.button_group[0]
    assert list(pills.options) == [e.name for e in EXAMPLES]
    assert not button(test, "Decode").disabled and button(test, "Stop").disabled
    from bastion.decoding.methods import METHODS
    assert test.selectbox(key="method").options == [
        f"{n}:{e.argument}" if e.argument else n for n, e in METHODS.items() if e.build is not None]


def test_one_click_on_an_example_fills_the_prompt(jobs):
    test = app()
    test.button_group[0].set_value(EXAMPLES[3].name).run()
    assert not test.exception and test.text_area(key="prompt").value == EXAMPLES[3].prompt


@pytest.mark.parametrize(("method", "field", "typed"), [("specinfer", "method_widths", "3,2"), ("synthetic", "method_rates", "0.9,0.5")])
def test_widths_and_rates_are_typed_and_brought_back(jobs, method, field, typed):
    test = app()
    test.selectbox(key="method").set_value(method).run()
    test.text_input(key=field).set_value(typed).run()
    test.text_area[0].set_value("ab").run()
    button(test, "Decode").click().run()
    run_id = test.query_params["run"]
    assert jobs.view(run_id).request.method == f"{method}:{typed}"
    finished(jobs, run_id)
    again = app(run=run_id)
    assert again.selectbox(key="method").value == method and again.text_input(key=field).value == typed


def test_an_estimator_goes_with_an_adaptive_method_and_is_brought_back(jobs):
    test = app()
    test.selectbox(key="estimator").set_value("table").run()
    test.text_area(key="prompt").set_value("Hi").run()
    button(test, "Decode").click().run()
    run_id = test.query_params["run"]
    assert jobs.view(run_id).request.method == "bastion@table"
    finished(jobs, run_id)
    again = app(run=run_id)
    assert again.selectbox(key="method").value == "bastion" and again.selectbox(key="estimator").value == "table"
    again.selectbox(key="method").set_value("dflash").run()
    assert not again.exception and "estimator" not in [box.key for box in again.selectbox]
    button(again, "Decode").click().run()
    assert jobs.view(again.query_params["run"]).request.method == "dflash"


def test_decode_submits_what_the_widgets_say_and_the_link_holds_the_run(jobs, engine):
    engine.hold("ddtree:24 1")
    test = app()
    test.text_area(key="prompt").set_value("Count").run()
    test.selectbox(key="method").set_value("ddtree").run()
    test.number_input(key="method_argument").set_value(24)
    test.number_input(key="temperature").set_value(0.7)
    test.number_input(key="top_p").set_value(0.9)
    test.number_input(key="top_k").set_value(40)
    test.number_input(key="seed").set_value(7)
    test.number_input(key="max_new_tokens").set_value(9)
    button(test, "Decode").click()
    test.run()
    engine.reached("ddtree:24 1")
    job_id = test.query_params["run"]
    assert jobs.view(job_id).request == DecodeRequest(
        "Count", "ddtree:24", temperature=0.7, top_p=0.9, top_k=40, seed=7, max_new_tokens=9)
    test.run()
    assert button(test, "Decode").disabled and not button(test, "Stop").disabled
    engine.release("ddtree:24 1")
    finished(jobs, job_id)
    test.run()
    assert not test.exception and "Done: 9 tokens in 3 steps, as many as asked for." in words(test)
    assert test.text_area(key="prompt").value == "Count" and not button(test, "Decode").disabled


def test_bounds_of_an_adaptive_tree_reach_the_request(jobs):
    test = app()
    test.text_area(key="prompt").set_value("Count")
    test.number_input(key="min_nodes").set_value(4)
    test.number_input(key="max_nodes").set_value(40)
    button(test, "Decode").click()
    test.run()
    request = jobs.view(test.query_params["run"]).request
    assert (request.method, request.min_nodes, request.max_nodes) == ("bastion", 4, 40)


def test_a_run_that_a_cpu_decodes_is_looked_at_less_often(jobs, engine):
    from pages.parts.live import POLL_SECONDS, POLL_SECONDS_BESIDE, poll_seconds

    engine.hold("read 0")
    engine.hold("bastion 1")
    on_cpu = jobs.submit(DecodeRequest("a", max_new_tokens=9))
    beside = jobs.submit(DecodeRequest("b", method="ddtree:24", max_new_tokens=4, pair=PairChoice(device="cuda:0")))
    waiting = jobs.submit(DecodeRequest("c", max_new_tokens=4))
    engine.reached("read 0")
    assert not show(on_cpu, jobs).steps and poll_seconds(show(on_cpu, jobs)) == POLL_SECONDS   # somebody waits for the first
    engine.release("read 0")
    engine.reached("bastion 1")
    running = show(on_cpu, jobs)
    assert running.steps and poll_seconds(running) == POLL_SECONDS_BESIDE
    assert poll_seconds(show(waiting, jobs)) == POLL_SECONDS
    assert poll_seconds(replace(show(beside, jobs), steps=running.steps, live=True)) == POLL_SECONDS
    engine.release("bastion 1")
    finished(jobs, on_cpu)
    assert poll_seconds(show(on_cpu, jobs)) is None


def test_stop_cancels_the_run_on_show(jobs, engine):
    engine.hold("bastion 2")
    job_id = jobs.submit(DecodeRequest("Count", max_new_tokens=90))
    engine.reached("bastion 2")
    test = app(run=job_id)
    button(test, "Stop").click()
    test.run()
    engine.release("bastion 2")
    finished(jobs, job_id)
    test.run()
    assert not test.exception and "Stopped after" in words(test)


def test_a_wrong_input_is_one_sentence_and_nothing_typed_is_lost(jobs):
    test = app()
    test.text_area(key="prompt").set_value("Keep me")
    test.number_input(key="min_nodes").set_value(9)
    test.number_input(key="max_nodes").set_value(8)
    button(test, "Decode").click()
    test.run()
    assert [e.value.replace("\\", "") for e in test.error] == [
        "The largest tree must not be smaller than the smallest: raise it or lower the other."]
    assert test.text_area(key="prompt").value == "Keep me" and test.number_input(key="min_nodes").value == 9
    assert jobs.waiting() == 0


def test_a_failed_job_says_why_and_keeps_the_prompt(jobs):
    test = app()
    test.text_area(key="prompt").set_value("x" * 1001)
    button(test, "Decode").click()
    test.run()
    finished(jobs, test.query_params["run"])
    test.run()
    assert not test.exception and "The prompt has more tokens than the model allows; shorten it." in words(test)
    assert test.text_area(key="prompt").value == "x" * 1001


def test_a_link_to_no_run_is_one_sentence(jobs):
    test = app(run="20260101-000000-abcdef")
    assert not test.exception and "There is no run 20260101-000000-abcdef" in words(test)
    test = app(run="../../etc/passwd")
    assert not test.exception and "is not a run id" in words(test)


def test_a_saved_run_opens_by_its_link_with_its_prompt_and_step(jobs, engine, tmp_path, monkeypatch):
    job_id = jobs.submit(DecodeRequest("Count", max_new_tokens=12))
    finished(jobs, job_id)
    restarted = JobManager(engine, RunStore(tmp_path))
    monkeypatch.setattr(manager_module, "_manager", restarted)
    test = app(run=job_id, step="2")
    assert not test.exception and "Done: 12 tokens in 4 steps" in words(test)
    assert test.text_area(key="prompt").value == "Count" and "Method: bastion" in words(test)
    payload = component_data(test)
    assert payload["run"] == job_id and payload["select"] == 2 and not payload["live"]
    assert ["".join(s["words"]) for s in payload["steps"]] == ["".join(p) for p in restarted.store.open(job_id).pieces]


def component_data(test: AppTest) -> dict:
    """The data of the tree component, which AppTest itself does not know."""
    import json
    protos = [node.proto.json for node in test.main if getattr(node, "type", "") == "bidi_component"]
    return json.loads(protos[0])


@pytest.mark.parametrize("step", ["x", "-1", "9" * 30, "", "²"])
def test_a_step_that_is_none_does_not_break_the_page(jobs, step):
    job_id = jobs.submit(DecodeRequest("Count", max_new_tokens=6))
    finished(jobs, job_id)
    assert not app(run=job_id, step=step).exception


@pytest.mark.parametrize("prompt", NASTY)
def test_nasty_prompts_show_as_text_in_titles_and_prompt(jobs, prompt):
    job_id = jobs.submit(DecodeRequest(prompt, max_new_tokens=4))
    finished(jobs, job_id)
    test = app(run=job_id)
    assert not test.exception and test.text_area(key="prompt").value.replace("\x00", "") == prompt.replace("\x00", "")


def test_without_a_model_the_page_fetches_it_says_what_failed_and_tries_again(jobs, monkeypatch):
    tries, there = [], []

    def fetch(source, progress):
        tries.append(source)
        if len(tries) == 1:
            raise UserError("No network: run `python -m bastion fetch` later.")
        there.append(True)

    monkeypatch.setattr("pages.parts.fetch.model_ready", lambda: bool(there))
    monkeypatch.setattr("bastion.models.fetch.fetch_default", fetch)
    test = app()
    finished(jobs, test.session_state["fetch"])
    test.run()
    assert not test.exception and [e.value for e in test.error] == ["No network: run `python -m bastion fetch` later."]
    assert button(test, "Decode").disabled and test.text_area(key="prompt")
    button(test, "Fetch the default model (93 MB)").click()
    test.run()
    finished(jobs, test.session_state["fetch"])
    test.run()
    assert not test.exception and len(tries) == 2 and not test.error and not button(test, "Decode").disabled


def test_pages_open_saved_runs_without_torch(jobs, tmp_path):
    """In a process where torch and transformers cannot be imported, as on a machine without them."""
    job_id = jobs.submit(DecodeRequest("Count", max_new_tokens=6))
    finished(jobs, job_id)
    script = textwrap.dedent(f"""
        import importlib.util, sys
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name.split(".")[0] in ("torch", "transformers") else found(name, *a)
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("torch", "transformers"):
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Absent())
        from streamlit.testing.v1 import AppTest
        import bastion.jobs.job_manager as m
        from bastion.records import RunStore
        m._manager = m.JobManager(store=RunStore({str(tmp_path)!r}))
        test = AppTest.from_file({str(ROOT / "app.py")!r}, default_timeout=300)
        test.query_params["run"] = {job_id!r}
        test.run()
        assert not test.exception, test.exception
        assert "to decode, install torch and transformers" in test.info[0].value, test.info
        assert any("Done: 6 tokens" in c.value.replace("\\\\", "") for c in test.caption), test.caption
        assert all(b.disabled for b in test.button if b.label in ("Decode", "Stop"))
        assert "torch" not in sys.modules
        print("viewed")
    """)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "viewed" in done.stdout, done.stderr[-2000:]


def test_terms_page_lists_every_definition(jobs):
    from bastion.figures.glossary import GLOSSARY
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300).run()
    test.switch_page("pages/terms.py").run()
    text = words(test)
    assert not test.exception and all(definition in text for definition in GLOSSARY.values())


@pytest.mark.parametrize("info, shown", [
    ({"method": "ddtree:24", "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 7, "max_new_tokens": 9}},
     {"method_argument": 24, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 7, "max_new_tokens": 9}),
    ({"method": "ddtree:99999999", "sampling": {"temperature": 1e9, "top_p": True, "top_k": "x", "seed": -1, "max_new_tokens": None}},
     {"method_argument": 16, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0, "max_new_tokens": 128}),
    ({"method": "ddtree", "sampling": {}}, {"method_argument": 16, "temperature": 0.0}),
])
def test_a_run_opened_by_its_link_brings_settings_that_the_fields_take(jobs, info, shown):
    writer = jobs.store.create(make_info(prompt="Count", **info), text_of=text_of)
    for record in make_run(2):
        writer.append(record)
    writer.finish("length")
    test = app(run=writer.id)
    assert not test.exception and test.text_area(key="prompt").value == "Count"
    assert test.selectbox(key="method").value == "ddtree"
    assert {name: test.number_input(key=name).value for name in shown} == shown


def test_a_run_and_the_form_come_back_after_a_look_at_another_page(jobs):
    job_id = jobs.submit(DecodeRequest("ab", max_new_tokens=4))
    finished(jobs, job_id)
    test = app(run=job_id, step="1")
    test.selectbox(key="method").select("ddtree").run()
    test.number_input(key="method_argument").set_value(9).run()
    test.switch_page("pages/terms.py").run()
    assert "surrogate" in words(test)
    test.query_params.clear()
    test.switch_page("pages/explore.py").run()
    assert test.query_params["run"] == job_id and test.text_area[0].value == "ab"
    assert test.selectbox(key="method").value == "ddtree" and test.number_input(key="method_argument").value == 9
    jobs.store.delete(job_id)
    jobs._jobs.clear()
    test.switch_page("pages/terms.py").run()
    test.query_params.clear()
    test.switch_page("pages/explore.py").run()
    assert not test.error and "run" not in test.query_params and test.text_area[0].value == "ab"
