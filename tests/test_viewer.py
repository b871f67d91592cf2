"""requirements-viewer.txt: enough for every page and a run from elsewhere, and no more than what shows runs.

The environment is made from the one that runs the tests (see tests/viewer_environment.py), so nothing is installed
over the network; torch, transformers, safetensors, gguf and networkx are not in it.
"""

import re
import subprocess
import sys
from importlib import metadata

import pytest

from bastion.records import RunStore
from tests.browser import ROOT, StudioServer
from tests.synthetic_runs import decode, make_info, make_run, text_of
from tests.test_latency_catalogue import made
from tests.test_layers import TORCH_LAYERS, imports, layer_of, packages_of, sources
from tests.viewer_environment import canonical, installed_with, requirements, viewer_python

LAZY_ONLY = {
    "networkx": "python -m bastion runs graph",
    "datasets": "public prompt sets, downloaded for a benchmark",
}
"""Packages outside the viewer that modules of it name inside functions, and what needs them."""

PAGES = re.findall(r'st\.Page\("pages/(\w+)\.py"', (ROOT / "app.py").read_text())
NEED_ENGINE = {"explore", "compare", "latency", "benchmark", "doctor"}
MISSING = "install torch and transformers"


def outside(name: str) -> str:
    return name.split(".")[0]


def viewer_modules():
    """Every module of ours that may be loaded without an engine, with its imports of others' packages."""
    known = sources(ROOT)
    for module, path in known.items():
        if layer_of(module) in TORCH_LAYERS:
            continue
        for one in imports(path, module, known):
            if layer_of(one.module) is None and outside(one.module) not in sys.stdlib_module_names:
                yield module, one


def provided() -> set[str]:
    names = set(installed_with(requirements("requirements-viewer.txt")))
    return {top for top, by in metadata.packages_distributions().items() if names & set(map(canonical, by))}


def test_the_packages_cover_every_import_of_the_viewers_modules():
    there, shown = provided(), on_pages()
    for module, one in viewer_modules():
        if outside(one.module) not in there:
            assert not one.eager or module not in shown, f"{module} imports {one.module} as soon as it is loaded"
            assert outside(one.module) in LAZY_ONLY, f"{module} imports {one.module}, which the viewer does not have"


def on_pages() -> set[str]:
    """The modules that app.py and the pages load, at the top of files or within functions, engine aside."""
    known = sources(ROOT)
    waiting = [name for name in known if name == "app" or name.startswith("pages.")]
    seen = set(waiting)
    while waiting:
        here = waiting.pop()
        for one in imports(known[here], here, known):
            for loaded in packages_of(one.module):
                if loaded in known and loaded not in seen and layer_of(loaded) not in TORCH_LAYERS:
                    seen.add(loaded)
                    waiting.append(loaded)
    return seen


def test_the_two_files_agree():
    text = (ROOT / "requirements.txt").read_text()
    assert "-r requirements-viewer.txt" in text.splitlines()
    viewer, engine = ({canonical(r.name) for r in requirements(f"requirements{kind}.txt")} for kind in ("-viewer", ""))
    assert not viewer & engine and {"torch", "transformers", "safetensors", "gguf"} <= engine
    makers = metadata.packages_distributions()
    named = {canonical(by) for name in {outside(one.module) for _, one in viewer_modules()} for by in makers.get(name, [])}
    assert viewer <= named, "something is asked for that no module of the viewer imports"
    with open(ROOT / "Dockerfile") as file:
        assert "COPY requirements.txt requirements-viewer.txt" in file.read()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return viewer_python(tmp_path_factory.mktemp("viewer") / "venv")


def test_nothing_that_decodes_is_in_the_environment(environment):
    script = ("import importlib.util as u, sys; names = ['torch', 'transformers', 'safetensors', 'gguf', 'networkx', 'pytest'];"
              "print([n for n in names if u.find_spec(n)]); import numpy, scipy, pandas, pyarrow, streamlit, plotly, click")
    done = subprocess.run([environment, "-c", script], capture_output=True, text=True, cwd="/")
    assert done.stdout.strip() == "[]" and done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def recorded_elsewhere(tmp_path_factory):
    """The zip of a run whose run.json names a machine that is not this one."""
    store = RunStore(tmp_path_factory.mktemp("gpu"))
    info = make_info(title="On the big machine", device="NVIDIA H200", dtype="bfloat16", pair="Qwen/Qwen3-8B + z-lab/Qwen3-8B-DFlash",
                     prompt="How many sheep?", drafter_depth=7, yardstick={"tokens_per_second": 40.0},
                     calibration=made("2026-01-01T00:00:00+00:00", device_name="NVIDIA H200", device_key="h200").to_json())
    writer = store.create(info, run_id="20260101-120000-h20000", text_of=text_of, decode=decode)
    for record in make_run(12, seed=5, nodes=24):
        writer.append(record)
    writer.finish("length")
    path = store.root.parent / "h200.zip"
    store.export_zip(writer.id, path)
    return path


class ViewerServer(StudioServer):
    """The app run by another interpreter than that of the tests."""

    def __init__(self, home, python) -> None:
        self.python = python
        super().__init__(home)

    def interpreter(self) -> str:
        return str(self.python)


@pytest.fixture(scope="module")
def server(environment, recorded_elsewhere, tmp_path_factory):
    """A server in the viewer's environment whose store holds the run that its own command line imported."""
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run([environment, "-m", "bastion", "runs", "import", str(recorded_elsewhere)], cwd=ROOT,
                          env={"BASTION_HOME": str(home), "PATH": ""}, capture_output=True, text=True)
    assert done.returncode == 0 and "was added" in done.stdout, done.stderr
    studio = ViewerServer(home, environment)
    yield studio
    studio.kill()


def test_a_run_from_a_gpu_machine_opens_in_explore(screen, server):
    run = RunStore(server.runs()).open("20260101-120000-h20000")
    screen.page.goto(f"{server.url}/?run={run.id}&step=5")
    screen.until(lambda: screen.page.locator("[data-testid=tree-node]").count() >= run.steps[5].nodes)
    assert screen.part("step-label").inner_text() == "Step 5 of 12"
    told = screen.page.get_by_test_id("stSidebar").inner_text()
    assert "NVIDIA H200" in told and "bfloat16" in told
    assert screen.page.get_by_test_id("text-token").count() == len(run.output_ids)
    speedup = run.info["totals"]["tokens_per_second"] / 40
    screen.page.get_by_test_id("step-strip").press("End")
    screen.until(lambda: f"{speedup:.3g}"[:4] in screen.part("speed-title").inner_text())
    assert screen.page.get_by_test_id("stAlert").count() == 1 and MISSING in screen.page.get_by_test_id("stAlert").inner_text()
    assert screen.page.get_by_role("button", name="Decode").is_disabled() and not screen.errors


@pytest.mark.parametrize("address, said", [("surrogate?surrogate-runs=20260101-120000-h20000", "h20000"), ("latency", "carried by 1 saved run, not stored on this machine")])
def test_surrogate_and_latency_work_on_the_same_run(screen, server, address, said):
    screen.page.goto(f"{server.url}/{address}")
    main = screen.page.get_by_test_id("stMain")
    screen.until(lambda: screen.page.locator(".js-plotly-plot .main-svg").count() >= 2)
    screen.until(lambda: said in main.inner_text())
    assert main.get_by_test_id("stException").count() == 0


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_and_says_in_one_line_what_needs_an_engine(screen, server, page):
    screen.page.goto(f"{server.url}/{page if page != 'explore' else ''}")
    main = screen.page.get_by_test_id("stMain")
    screen.until(lambda: screen.page.get_by_test_id("stStatusWidget").count() == 0 and len(main.inner_text()) > 40)
    screen.until(lambda: (MISSING in main.inner_text()) == (page in NEED_ENGINE))
    assert main.get_by_test_id("stException").count() == 0
    said = [alert for alert in main.get_by_test_id("stAlert").all_inner_texts() if MISSING in alert]
    assert len(said) == (page in NEED_ENGINE) and all("\n" not in alert for alert in said)
    assert "Traceback" not in server.log.read_text()
