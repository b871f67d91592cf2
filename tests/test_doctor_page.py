"""The Doctor page as a script: empty, running, with findings, stopped, failed, and without torch."""

import threading
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import bastion.jobs.job_manager as manager_module
from bastion.errors import UserError
from bastion.figures import doctor_words as words
from bastion.figures.doctor_chart import doctor_figure, doctor_table
from bastion.jobs import JobManager
from bastion.jobs.doctoring import JOB_ID, DoctorRequest, start_doctor
from bastion.records import RunStore
from tests.counting_engine import CountingEngine

ROOT = Path(__file__).resolve().parents[1]


def tried(test, verdict, before=1.5, after=2.3, change="a <b>change</b>"):
    same = verdict == "same"
    return {"test": test, "change": change, "todo": "set mask_token_id to 16", "verdict": verdict, "tau_before": None if same else before,
            "tau_after": None if same else after, "tau_gain": None if same else after - before,
            "tau_interval": None if same else [after - before - 0.1, after - before + 0.1], "positions": None if same else 90,
            "nats_gain": None if same else 0.5, "nats_interval": None if same else [0.4, 0.6]}


REPORT = {
    "pair": "smollm2-135m", "tau": 1.5, "positions": 90, "nodes": 16, "seconds": 3.0, "confidence": 0.99, "least_gain": 0.05,
    "least_nats": 0.01, "findings": [tried("mask", "fault")], "healthy": ["order"], "not_tested": {"temperatures": "It has none."},
    "tried": [tried("mask", "fault"), tried("order", "worse", after=1.2), tried("anchor", "same")]}


class Engine(CountingEngine):
    fails = False

    def examine(self, pair, prompts, tokens, nodes, tests, say):
        self.asked = (prompts, tests)
        say("Testing: mask token", 0.5)
        self._pass("examine")
        say("Testing: order", 0.6)
        if self.fails:
            raise UserError("The target's answers are too short.")
        return REPORT


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def jobs(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    jobs = JobManager(engine, RunStore())
    monkeypatch.setattr(manager_module, "_manager", jobs)
    monkeypatch.setattr("pages.parts.fetch.model_ready", lambda: True)
    yield jobs
    engine.release_all()
    jobs.close()


def page() -> AppTest:
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300)
    test.switch_page("pages/doctor.py")
    return test.run()


def shown(test: AppTest) -> str:
    parts = (element.value for kind in ("title", "subheader", "markdown", "caption", "info") for element in getattr(test, kind))
    return " ".join(parts).replace("\\", "")


def finished(jobs):
    while not jobs.view(JOB_ID).final:
        threading.Event().wait(0.01)


def test_empty_it_says_what_to_do(jobs):
    test = page()
    assert not test.exception and "Press Examine" in shown(test) and test.button(key="doctor-start").label == "Examine"


def test_the_button_examines_and_the_report_stands_there(jobs):
    test = page()
    test.button(key="doctor-start").click().run()
    finished(jobs)
    test = page()
    assert not test.exception
    text = shown(test)
    assert "1 fault found" in text and "mask: tau 1.50 becomes 2.30" in text and "set mask" in text and "Not tested: temperatures" in text
    table = test.dataframe[0].value
    assert list(table["verdict"]) == ["fault", "healthy: worse with it", "healthy: already so"]


def test_while_it_runs_it_says_how_far_and_can_be_stopped(jobs, engine):
    engine.hold("examine")
    start_doctor(jobs, DoctorRequest())
    engine.reached("examine")
    test = page()
    assert not test.exception and not [button for button in test.button if button.key == "doctor-start"]
    test.button(key="doctor-stop").click().run()
    engine.release("examine")
    finished(jobs)
    assert jobs.view(JOB_ID).state == "cancelled" and "Stopped." in shown(page())


def test_the_address_says_how_much_is_asked_and_which_tests_are_made(jobs, engine):
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300)
    test.run()
    test.query_params["doctor-size"] = "quick"
    test.query_params["doctor-tests"] = ["mask", "no such test", "order"]
    test.switch_page("pages/doctor.py").run()
    assert not test.exception and "under a minute" in shown(test)
    test.button(key="doctor-start").click().run()
    finished(jobs)
    assert engine.asked == (3, ("mask", "order"))


def test_a_failure_is_one_sentence(jobs, engine):
    engine.fails = True
    start_doctor(jobs, DoctorRequest())
    finished(jobs)
    test = page()
    assert not test.exception and "answers are too short" in shown(test)


def test_without_torch_it_says_so_in_one_line(jobs, monkeypatch):
    monkeypatch.setattr("bastion.jobs.offers.engine_missing", lambda: "Install torch.")
    test = page()
    assert not test.exception and "cannot be examined here" in shown(test) and not list(test.button)


def test_a_request_that_cannot_be_is_refused(jobs):
    with pytest.raises(UserError, match="at least 1"):
        start_doctor(jobs, DoctorRequest(tokens=0))


def test_the_chart_draws_every_change_that_makes_a_difference_and_escapes_names():
    figure = doctor_figure(REPORT)
    assert list(figure.data[0].x) == pytest.approx([0.8, -0.3])
    assert list(figure.layout.yaxis.ticktext) == ["mask: a &lt;b&gt;change&lt;/b&gt;", "order: a &lt;b&gt;change&lt;/b&gt;"]
    assert figure.data[0].customdata[0][0] == "mask: a &lt;b&gt;change&lt;/b&gt;"
    assert figure.layout.title.text == "Undoing 1 fault raises tau"
    assert len(doctor_table(REPORT)) == 3
    assert "no fault found" in words.headline({**REPORT, "findings": []})
