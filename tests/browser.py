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
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from bastion.home import calibrations_dir

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


def studio_home(folder: Path, default_model: Path) -> Path:
    """A BASTION_HOME with the default model, the calibrations of this test session, and no runs."""
    calibrations_dir().mkdir(parents=True, exist_ok=True)
    (folder / "models").symlink_to(default_model.parent.resolve(), target_is_directory=True)
    (folder / "calibrations").symlink_to(calibrations_dir().resolve(), target_is_directory=True)
    return folder


class StudioServer:
    """`streamlit run app.py` (or another script) on a free port of 127.0.0.1, with its own BASTION_HOME."""

    def __init__(self, bastion_home: Path, script: str = "app.py") -> None:
        self.home, self.script = bastion_home, script
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = bastion_home / "server.log"
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "BASTION_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.interpreter(), "-m", "streamlit", "run", self.script, "--server.port", str(self.port),
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

    def interpreter(self) -> str:
        return sys.executable

    def kill(self) -> None:
        """SIGKILL: nothing gets to tidy up."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def runs(self) -> Path:
        return self.home / "runs"


class Screen:
    """One tab: the page, with every error of its console and every dialog kept for the test to look at."""

    def __init__(self, browser, server: StudioServer, width: int = 1440, height: int = 1000) -> None:
        self.server = server
        self.context = browser.new_context(viewport={"width": width, "height": height})
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.errors: list[str] = []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def open(self, **query: str) -> None:
        self.page.goto(f"{self.server.url}/?{urlencode(query)}")
        # The first page of a server imports torch, which takes a while on a busy machine.
        self.page.get_by_role("combobox", name="Method").wait_for(timeout=240_000)

    def choose(self, method: str, tokens: int) -> None:
        self.page.get_by_role("combobox", name="Method").click()
        self.page.get_by_role("option", name=method, exact=True).click()
        field = self.page.get_by_label("New tokens, at most")
        field.fill(str(tokens))
        field.press("Enter")

    def decode(self, prompt: str) -> str:
        """Type the prompt, press Decode, and return the id of the run that the link then holds."""
        before = self.run_id()
        self.prompt().fill(prompt)
        self.prompt().press("Control+Enter")   # what was typed is with the server before the click
        self.press("Decode")
        self.until(lambda: self.run_id() not in ("", before))
        return self.run_id()

    def press(self, button: str) -> None:
        self.page.get_by_test_id("stMain").get_by_role("button", name=button, exact=True).click()

    def prompt(self):
        return self.page.get_by_role("textbox", name="Prompt")

    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.page.url).query))

    def run_id(self) -> str:
        return self.query().get("run", "")

    def status(self) -> str:
        return self.page.locator(".st-key-status").inner_text()

    def part(self, test_id: str):
        return self.page.get_by_test_id(test_id)

    def until(self, holds, seconds: float = 240) -> None:
        """Wait until `holds()` is true; errors while the page is being redrawn count as not yet."""
        end, last = time.monotonic() + seconds, None
        while time.monotonic() < end:
            try:
                if holds():
                    return
            except Exception as error:
                last = error
            self.page.wait_for_timeout(50)
        raise AssertionError(f"waited {seconds} s; the page says: {self.page.locator('body').inner_text()[:1500]} {last or ''}")
