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
