"""Calibrating as a job: progress, stop, what a stop or a kill leaves behind, what a run carries, the command."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bastion.analysis.latency_estimators import summary
from bastion.cli import main
from bastion.errors import UserError
from bastion.jobs import DecodeRequest, JobManager, PairChoice
from bastion.jobs.calibrating import JOB_ID, CalibrationRequest, choice_for, preset_of, start_calibration, this_device
from bastion.jobs.engine import DecodingEngine, described
from bastion.latency import Calibration, ProbeGrid, stored_calibrations
from bastion.records import RunStore
from tests.tiny_folders import write_drafter, write_target

ROOT = Path(__file__).resolve().parents[1]
SMALL = ProbeGrid((1, 2, 3, 4, 6, 8), (8, 16, 32), 2, 5.0)


@pytest.fixture(scope="module")
def choice(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return PairChoice(None, str(write_target(folder / "target")), str(write_drafter(folder / "drafter")), "cpu", "float32")


class HeldEngine(DecodingEngine):
    """Waits, once armed, at the first report of a calibration."""

    def __init__(self):
        super().__init__()
        self.there, self.go, self.armed = threading.Event(), threading.Event(), False

    def calibrate(self, pair, say, quick=True, grid=None):
        def slow(progress):
            say(progress)
            if self.armed and progress.share > 0.3:
                self.there.set()
                assert self.go.wait(60)
            say(progress)
        return super().calibrate(pair, slow, quick=quick, grid=grid)


@pytest.fixture
def home(tmp_path, monkeypatch):
    from bastion.decoding import peaks
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    monkeypatch.setattr(peaks, "SECONDS", 0.01)
    monkeypatch.setattr(peaks, "CPU_BYTES", 1 << 20)
    return tmp_path


@pytest.fixture
def jobs(home):
    made = JobManager(HeldEngine(), RunStore(home / "runs"))
    yield made
    made.engine.go.set()
    made.close(60)


def finished(jobs, job_id):
    for _ in range(12_000):
        if not jobs.view(job_id).live:
            return jobs.view(job_id)
        time.sleep(0.01)
    raise AssertionError(jobs.view(job_id))


def stored(home) -> dict[str, bytes]:
    """Every file of the folder of calibrations, hidden ones too."""
    return {path.name: path.read_bytes() for path in (home / "calibrations").iterdir()}


def test_a_calibration_is_a_job_with_progress_and_its_result_is_stored(jobs, choice, home):
    job_id = start_calibration(jobs, CalibrationRequest(choice, grid=SMALL))
    view = finished(jobs, job_id)
    assert job_id == JOB_ID and view.state == "done", view.error
    ((calibration, path),) = stored_calibrations().found
    assert view.info["made"] == calibration.id and view.calibration == described(calibration)
    assert {(n, c) for n, c, _ in calibration.probes} == {(n, c) for n in SMALL.nodes for c in SMALL.contexts}
    events = [e.data for e in jobs.events(job_id)]
    shares = [e["done"] for e in events if "done" in e]
    assert shares == sorted(shares) and len(set(shares)) > 10 and shares[-1] == 1.0
    assert any(e.get("seconds_left") is not None for e in events)
    assert [e["state"] for e in events if "state" in e] == ["loading model", "calibrating", "done"]
    assert path.is_relative_to(home)


def test_stopped_it_leaves_what_was_stored_and_decodes_wait_meanwhile(jobs, choice, home):
    finished(jobs, start_calibration(jobs, CalibrationRequest(choice, grid=SMALL)))
    before = stored(home)
    jobs.engine.armed = True
    start_calibration(jobs, CalibrationRequest(choice, quick=False, grid=SMALL))
    assert jobs.engine.there.wait(60)
    waiting = jobs.submit(DecodeRequest("Hi", "ar", choice, max_new_tokens=3))
    assert jobs.view(waiting).state == "queued" and jobs.view(waiting).ahead == 1
    assert start_calibration(jobs, CalibrationRequest(choice)) == JOB_ID   # joins the one that runs
    assert jobs.view(JOB_ID).request.quick is False
    jobs.cancel(JOB_ID)
    jobs.engine.go.set()
    assert finished(jobs, JOB_ID).state == "cancelled" and stored(home) == before
    assert finished(jobs, waiting).state == "done"


def test_a_stop_while_it_waits_behind_others_needs_no_device(jobs, choice, home):
    jobs.engine.armed = True
    first = start_calibration(jobs, CalibrationRequest(choice, grid=SMALL))
    assert jobs.engine.there.wait(60)
    second = jobs.start(None, choice, lambda job: None, "other")
    jobs.cancel(second)
    assert jobs.view(second).state == "cancelled" and jobs.view(first).state == "calibrating"


def test_a_failure_is_one_sentence(jobs, home):
    view = finished(jobs, start_calibration(jobs, CalibrationRequest(PairChoice(None, "/no/such/folder"))))
    assert view.state == "failed" and "\n" not in view.error and "/no/such/folder" in view.error
    assert not (home / "calibrations").exists()


def test_killed_it_leaves_what_was_stored(choice, home):
    """SIGKILL in the middle of the probes of another process."""
    script = f"""
import sys
from bastion.decoding import peaks
peaks.SECONDS, peaks.CPU_BYTES = 0.01, 1 << 20
from bastion import load_pair
from bastion.decoding import calibrate
from bastion.latency import ProbeGrid
pair = load_pair({choice.target!r}, {choice.drafter!r}, device="cpu", dtype="float32")
grid = {SMALL!r}
made = calibrate(pair, grid=grid)
print(made.path, flush=True)
def hold(words, share):
    if share > 0.5:
        print("probing", flush=True)
        sys.stdin.read()
calibrate(pair, grid=grid, progress=hold)
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        path = Path(process.stdout.readline().strip())
        before = stored(home)
        assert process.stdout.readline().strip() == "probing"
    finally:
        process.kill()
        process.wait(60)
    assert list(before) == [path.name] and stored(home) == before
    assert stored_calibrations().found[0][0] == Calibration.load(path)


@pytest.mark.parametrize(("grid", "words"), [
    (ProbeGrid((1, 2, 3), (8,), 1, 1.0), "four tree sizes"), (ProbeGrid((0, 1, 2, 3), (8,), 1, 1.0), "four tree sizes"),
    (ProbeGrid((), (8,), 1, 1.0), "four tree sizes"), (ProbeGrid((1, 2, 3, 4), (), 1, 1.0), "one context"),
    (ProbeGrid((1, 2, 3, 4), (0,), 1, 1.0), "one context"), (ProbeGrid((1, 2, 3, 4), (8,), 0, 1.0), "at least once")])
def test_a_grid_that_no_fit_can_come_of_is_refused(jobs, choice, grid, words):
    with pytest.raises(UserError, match=words):
        start_calibration(jobs, CalibrationRequest(choice, grid=grid))
    assert jobs.view(JOB_ID) is None


def test_a_run_carries_the_whole_calibration_whatever_its_method(jobs, choice):
    finished(jobs, start_calibration(jobs, CalibrationRequest(choice, grid=SMALL)))
    ((calibration, _),) = stored_calibrations().found
    for method in ("bastion", "ddtree:4", "ar"):
        request = DecodeRequest("Hello", method, choice, max_new_tokens=6, yardstick=False)
        run = jobs.store.open(finished(jobs, jobs.submit(request)).id)
        assert Calibration.from_json(run.info["calibration"]) == calibration
        assert run.info["calibration"]["max_probed_nodes"] == 8


def test_a_damaged_file_does_not_stop_a_decode(jobs, choice, home):
    finished(jobs, start_calibration(jobs, CalibrationRequest(choice, grid=SMALL)))
    ((_, path),) = stored_calibrations().found
    path.write_text("{")
    view = finished(jobs, jobs.submit(DecodeRequest("Hello", "ddtree:4", choice, max_new_tokens=4, yardstick=False)))
    assert view.state == "done" and view.calibration == {}


def test_a_known_pair_can_be_measured_again(home):
    from dataclasses import replace

    from tests.test_latency_catalogue import made
    own = made("2026-01-01", device_key=this_device(), target="SmolLM2-135M-Instruct", drafter="smollm2-135m-dflash")
    assert preset_of(own) == "smollm2-135m" and preset_of(replace(own, drafter="mine")) is None
    assert choice_for(own).preset == "smollm2-135m"
    assert {choice_for(replace(own, dtype=dtype)).dtype for dtype in ("float32", "bfloat16")} > {"auto"}
    assert preset_of(replace(own, target="Qwen/Qwen3-8B", drafter="z-lab/Qwen3-8B-DFlash-b16")) == "qwen3-8b"


def test_the_command_gives_errors_and_crossovers_and_lists_what_there_is(home, choice, capsys, monkeypatch):
    from bastion.latency import grid
    monkeypatch.setattr(grid, "QUICK_CPU", SMALL)
    assert main(["calibrate", "--list"]) == 0
    assert "No calibration yet" in capsys.readouterr().out
    pair = ["--target", choice.target, "--drafter", choice.drafter, "--device", "cpu", "--dtype", "float32"]
    assert main(["calibrate", "--quick", "--json", str(home / "made.json"), *pair]) == 0
    assert "crossover    context 8: " in capsys.readouterr().out
    ((calibration, path),) = stored_calibrations().found
    got = json.loads((home / "made.json").read_text())
    assert {name: got[name] for name in summary(calibration)} == json.loads(json.dumps(summary(calibration)))
    assert got["path"] == str(path) and set(got["estimators"]) >= {"roofline", "raw"} and set(got["crossover"]["raw"]) == {"8", "16", "32"}
    assert main(["generate", "--prompt", "Hi", "--method", "ar", "--max-new-tokens", "4", "--save", "--json", str(home / "run.json"), *pair]) == 0
    (run,) = RunStore().list()
    assert Calibration.from_json(RunStore().open(run.id).info["calibration"]) == calibration
    path.with_name("bad.json").write_text("no")
    assert main(["calibrate", "--list", "--json", str(home / "list.json")]) == 0
    out, err = capsys.readouterr()
    assert calibration.made_at in out and "stored" in out and "bad.json" in err
    listed = json.loads((home / "list.json").read_text())
    assert Calibration.from_json({k: v for k, v in listed["calibrations"][0].items() if k not in ("id", "path", "runs")}) == calibration
    assert listed["calibrations"][0]["id"] == calibration.id and len(listed["damaged"]) == 1
