"""A Studio server of its own and a Chromium page for end-to-end tests. Nothing is skipped: what is missing fails."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bastion.errors import UserError
from bastion.home import home

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str:
    """Path of a Chromium; fails the test when there is none."""
    for name in filter(None, (os.environ.get("BASTION_CHROMIUM"), *BROWSERS)):
        if found := shutil.which(name):
            return found
    pytest.fail("No Chromium here: install the package `chromium`, or set BASTION_CHROMIUM to its path.")


def default_model_home(folder: Path) -> Path:
    """A BASTION_HOME with the machine's models and calibrations and no runs; fails when there is no model."""
    from bastion.models.fetch import fetch_default
    try:
        fetch_default()
    except UserError as error:
        pytest.fail(f"The end-to-end tests need the default model. {error}")
    for shared in ("models", "calibrations"):
        (home() / shared).mkdir(parents=True, exist_ok=True)
        (folder / shared).symlink_to((home() / shared).resolve(), target_is_directory=True)
    return folder


class StudioServer:
    """`streamlit run app.py` on a free port of 127.0.0.1, with its own BASTION_HOME."""

    def __init__(self, bastion_home: Path) -> None:
        self.home = bastion_home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = bastion_home / "server.log"
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "BASTION_HOME": str(self.home)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(self.port),
                 "--server.headless", "true"],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.1)
        self.kill()
        pytest.fail(f"The server did not start:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL: nothing gets to tidy up."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def runs(self) -> Path:
        return self.home / "runs"
