"""A home of its own for every test session, and the default pair, loaded once.

Runs and calibrations that tests make go to a temporary folder; only the default model is taken
from (and, when absent, fetched into) the user's own cache. This happens before any test imports
bastion, whose presets read the folder when they are imported.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bastion.home import models_dir

_users_models = models_dir().absolute()
_home = Path(tempfile.mkdtemp(prefix="bastion-tests-"))
_users_models.mkdir(parents=True, exist_ok=True)
(_home / "models").symlink_to(_users_models, target_is_directory=True)
os.environ["BASTION_HOME"] = str(_home)
# Numbers that tests compare are float32's, also where `auto` would be another on this machine.
os.environ["BASTION_DTYPE"] = "float32"
# Threads of torch that wait by spinning slow each other down a hundredfold on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A busy machine is slow, not wrong: no property test fails for the time it took.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_unconfigure() -> None:
    shutil.rmtree(_home, ignore_errors=True)


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Folder of the default target, fetched when this machine does not have it yet."""
    from bastion.models.fetch import fetch_default

    return fetch_default()


@pytest.fixture(scope="session")
def default_pair(default_model: Path):
    """The default pair on the CPU in float32, where lossless means equal ids. Do not change it."""
    from bastion import load_pair

    return load_pair("smollm2-135m", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def calibrated(default_pair) -> None:
    """The default pair's calibration, where every test of the session finds it: measured, but at few points, in seconds."""
    from bastion.decoding.calibrate import calibrate
    from bastion.latency import ProbeGrid

    calibrate(default_pair, grid=ProbeGrid((1, 2, 4, 8, 16, 32, 64), (64, 256), 5, 5.0))


@pytest.fixture(scope="module")
def browser():
    """Chromium. One for each file: none inherits what another has done to it."""
    from playwright.sync_api import expect, sync_playwright

    from tests.browser import FLAGS, PATIENCE, find_browser

    expect.set_options(timeout=1e3 * PATIENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def studio(default_model: Path, calibrated, tmp_path_factory):
    """The app on the default pair, one server for all files: its first decode has loaded the pair for the others.

    A file whose tests need a store, a calibration or an environment of their own has a `server` of its own.
    """
    from tests.browser import StudioServer, studio_home

    shared = StudioServer(studio_home(tmp_path_factory.mktemp("studio"), default_model))
    yield shared
    shared.kill()


@pytest.fixture(scope="module")
def server(studio):
    return studio


@pytest.fixture
def screen(browser, server):
    """A tab of its own for each test."""
    from tests.browser import Screen

    opened = Screen(browser, server)
    yield opened
    opened.context.close()
