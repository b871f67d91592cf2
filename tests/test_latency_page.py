"""The Latency page as a script: empty, full, damaged, without torch, with names that mean harm."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import bastion.jobs.job_manager as manager_module
from bastion.figures import numbers
from bastion.figures.latency_words import calibration_label
from bastion.jobs import JobManager
from bastion.jobs.calibrating import JOB_ID, CalibrationRequest, this_device
from bastion.latency import stored_calibrations
from bastion.records import RunStore
from tests.counting_engine import CountingEngine
from tests.synthetic_runs import make_info, make_run, text_of
from tests.test_analysis_drift import save
from tests.test_latency_catalogue import made, saved_run

ROOT = Path(__file__).resolve().parents[1]
OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


class Engine(CountingEngine):
    """Its calibration is stored, like a real one's."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def calibrate(self, pair, say, **how):
        super().calibrate(pair, say)
        self.asked.append((pair, how))
        calibration = made("2026-03-01T00:00:00+00:00", device_key=this_device())
        calibration.save()
        return calibration.to_json()


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


def page(**query) -> AppTest:
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=300)
    for name, value in query.items():
        test.query_params[name.replace("_", "-")] = value
    test.switch_page("pages/latency.py").run()
    assert not test.exception, test.exception
    return test


def words(test: AppTest) -> str:
    shown = [*test.title, *test.subheader, *test.caption, *test.markdown, *test.error, *test.info, *test.warning]
    return "\n".join(c.value for c in shown).replace("\\", "")


def metrics(test: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in test.metric}


def finished(jobs):
    import time
    for _ in range(2000):
        if jobs.view(JOB_ID).final:
            return
        time.sleep(0.01)
    raise AssertionError(jobs.view(JOB_ID))


def test_the_empty_page_says_what_calibrating_takes_and_gives(jobs):
    test = page()
    assert "Calibrate this device" in words(test) and "under a minute" in words(test) and "whether it drifts" in words(test)
    assert test.button(key="latency-start") and not test.metric


def test_the_newest_of_this_device_is_shown_with_its_numbers(jobs):
    mine = made(OLD, device_key=this_device())
    mine.save()
    made(NEW, device_key="another").save()
    test = page()
    assert test.selectbox(key="latency-calibration").value == mine.id
    assert metrics(test) == {"RMSE, calibrated": numbers.seconds(mine.calibrated_rmse), "RMSE, raw": numbers.seconds(mine.raw_rmse),
                             "Taken off": numbers.percent(1 - mine.calibrated_rmse / mine.raw_rmse), "Drift": numbers.NONE}
    assert test.query_params["latency-calibration"] == calibration_label(mine)
    assert "No run has been made with this calibration yet." in words(test)


def test_an_address_names_its_calibration_or_says_that_it_is_gone(jobs):
    first, second = made(OLD), made(NEW, dtype="bfloat16")
    first.save(), second.save()
    assert page(latency_calibration=calibration_label(first)).selectbox(key="latency-calibration").value == first.id
    test = page(latency_calibration="2020-01-01 00:00:00 UTC, gone")
    assert test.selectbox(key="latency-calibration").value == second.id and "is not here, or was measured again" in words(test)
    test.selectbox(key="latency-calibration").set_value(first.id).run()
    assert not test.exception and "is not here" not in words(test)


def test_another_calibration_brings_its_own_contexts(jobs):
    first = made(OLD)
    probes = [(n, c, s) for n, c, s in first.probes if c == first.contexts[0]]
    one = replace(first, made_at=NEW, dtype="bfloat16", probes=probes, held_out=[False] * len(probes))
    first.save(), one.save()
    test = page()
    contexts = next(group for group in test.button_group if group.label == "Contexts, tokens")
    assert test.selectbox(key="latency-calibration").value == one.id and len(contexts.options) == 1
    assert "No probe was held out from this fit" in words(test) and metrics(test)["RMSE, raw"] == numbers.NONE
    test.selectbox(key="latency-calibration").set_value(first.id).run()
    assert not test.exception and len(next(g for g in test.button_group if g.label == "Contexts, tokens").value) == len(first.contexts)
    next(g for g in test.button_group if g.label == "Contexts, tokens").set_value([]).run()
    assert not test.exception
    next(g for g in test.button_group if g.label == "Axes").set_value("linear").run()
    assert not test.exception


def test_damaged_files_and_runs_are_a_line_each_and_the_rest_is_shown(jobs):
    good = made(OLD)
    good.save()
    for number in range(6):
        good.path.with_name(f"bad{number}.json").write_text("{")
    saved_run(jobs.store, {"made_at": OLD, "peaks_source": "measured"})
    test = page()
    assert len(test.warning) == 5 and "bad0.json" in words(test) and "2 more calibrations cannot be read." in words(test)
    assert "1 saved run holds only a summary of the calibration" in words(test)
    assert test.selectbox(key="latency-calibration").value == good.id


def test_a_click_calibrates_and_shows_the_new_one(jobs, engine):
    made(OLD, device_key=this_device()).save()
    engine.hold("probe 1")
    test = page()
    next(g for g in test.button_group if g.label == "Thoroughness").set_value("full")
    test.selectbox(key="pair-dtype").set_value("bfloat16")
    test.button(key="latency-start").click().run()
    engine.reached("probe 1")
    assert jobs.view(JOB_ID).request == CalibrationRequest(replace(CalibrationRequest().pair, dtype="bfloat16"), quick=False)
    test.run()
    assert "Decodes on this device wait until it is done" in words(test) and test.button(key="latency-stop")
    engine.release("probe 1")
    finished(jobs)
    test.run()
    assert not test.exception and engine.asked[0][1] == {"quick": False}
    assert test.selectbox(key="latency-calibration").value == stored_calibrations().found[0][0].id
    assert "2026-03-01" in stored_calibrations().found[0][0].made_at and test.button(key="latency-start")


def test_stop_ends_it_and_says_that_nothing_changed(jobs, engine):
    kept = made(OLD, device_key=this_device())
    kept.save()
    engine.hold("probe 0")
    test = page()
    test.button(key="latency-start").click().run()
    engine.reached("probe 0")
    test.run()
    test.button(key="latency-stop").click()
    test.run()
    engine.release("probe 0")
    finished(jobs)
    test.run()
    assert not test.exception and "Stopped; nothing stored has changed." in words(test) and engine.asked == []
    assert [calibration for calibration, _ in stored_calibrations().found] == [kept]


def test_drift_of_real_runs_its_verdict_and_one_run(jobs):
    calibration = made(OLD, device_key=this_device(), attention="bastion", target="SmolLM2-135M-Instruct", drafter="smollm2-135m-dflash")
    calibration.save()
    drifted = replace(calibration, device_key="cpu")
    drifted.save()
    runs = [save(jobs.store, drifted, [2.0, 2.1], seed=seed, title="[x](javascript:alert(1)) <b>") for seed in range(3)]
    test = page(latency_calibration=calibration_label(drifted))
    assert metrics(test)["Drift"] == "drifting" and "the calibration no longer holds, measure again" in words(test)
    assert sorted(test.selectbox(key="latency-run").options) == sorted(f"{run}, bastion, 2 steps" for run in runs)
    test.selectbox(key="latency-run").set_value(runs[1]).run()
    assert not test.exception and "[x](javascript:alert(1)) <b>" in words(test)
    assert "latency-again" not in [b.key for b in test.button]      # measured elsewhere
    test = page(latency_calibration=calibration_label(calibration))
    assert test.button(key="latency-again")


def test_a_calibration_with_hostile_names_is_text(jobs):
    nasty = made(OLD, target="<img src=x onerror=alert(1)>", drafter="[a](javascript:alert(1))", device_key="**b** `c` $x$", attention=":smile:")
    saved_run(jobs.store, nasty.to_json())
    test = page()
    assert test.selectbox(key="latency-calibration").value == nasty.id
    assert "Drafter [a](javascript:alert(1)), :smile: attention" in words(test) and "carried by 1 saved run" in words(test)


def test_a_run_from_elsewhere_shows_its_calibration_without_torch(jobs, tmp_path):
    calibration = made(OLD, device_key="H200", attention="bastion")
    writer = jobs.store.create(make_info(device="H200", calibration=calibration.to_json()), text_of=text_of)
    for step in make_run(2):
        writer.append(step)
    writer.finish("length")
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
        test = AppTest.from_file({str(ROOT / "app.py")!r}, default_timeout=300)
        test.switch_page("pages/latency.py").run()
        assert not test.exception, test.exception
        lines = [i.value for i in test.info if "Calibrations can be looked at here, not made." in i.value]
        assert len(lines) == 1 and "torch" in lines[0], test.info
        assert test.selectbox(key="latency-calibration").value == {calibration.id!r} and len(test.metric) == 4
        assert not [b for b in test.button if b.key in ("latency-start", "latency-again")]
        assert "torch" not in sys.modules
        print("viewed")
    """)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "viewed" in done.stdout, done.stderr[-2000:]
