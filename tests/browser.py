"""A Studio server and a Chromium page for end-to-end tests. Nothing is skipped: what is missing fails.

No wait depends on how fast the machine is: a test waits for what it needs, and only a wait that is in vain ends, by `PATIENCE`.
The fixtures `browser`, `server` and `screen` are in conftest.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from bastion.home import calibrations_dir

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
PATIENCE = 300
"""Seconds after which a wait is given up: far beyond what anything takes, on however busy a machine."""
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


SETTLED = """() => {
  const { testScriptState, testConnectionState } = document.querySelector("[data-testid=stApp]").dataset;
  if (testScriptState !== "notRunning" || testConnectionState !== "CONNECTED") return false;
  return new Promise((drawn) => requestAnimationFrame(() => setTimeout(() => drawn(true))));
}"""


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
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
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


@contextmanager
def bare_page(browser, width: int, height: int):
    """A tab without a server, for a component alone; whatever its console or a fault said fails the test."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(1e3 * PATIENCE)
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    yield page
    assert faults == []
    assert page.evaluate("window.alerts") in (0, None)
    page.close()


class Reruns:
    """Which runs of the page's script the tab has asked its server for, and whether the last of them is over.

    Those of fragments, which may follow each other without end while something is live, are not counted.
    """

    def __init__(self, page) -> None:
        self.asked = self.begun = self.over = 0
        page.on("websocket", self._listen)

    def _listen(self, socket) -> None:
        socket.on("framesent", self._sent)
        socket.on("framereceived", self._received)

    def _sent(self, frame: bytes | str) -> None:
        message = BackMsg.FromString(frame) if isinstance(frame, bytes) else BackMsg()
        if message.WhichOneof("type") == "rerun_script" and not message.rerun_script.fragment_id:
            self.asked += 1

    def _received(self, frame: bytes | str) -> None:
        message = ForwardMsg.FromString(frame) if isinstance(frame, bytes) else ForwardMsg()
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self.begun = self.asked
        elif kind == "script_finished" and message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
            self.over = self.begun


class Screen:
    """One tab: the page, with every error of its console and every dialog kept for the test to look at."""

    def __init__(self, browser, server: StudioServer, width: int = 1440, height: int = 1000) -> None:
        self.server = server
        self.context = browser.new_context(viewport={"width": width, "height": height})
        self.page = self.context.new_page()
        self.page.set_default_timeout(1e3 * PATIENCE)
        self.errors: list[str] = []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.reruns = Reruns(self.page)

    def open(self, **query: str) -> None:
        """Explore. The first page of a server imports torch, which takes a while on a busy machine."""
        self.page.goto(f"{self.server.url}/?{urlencode(query)}")
        self.page.get_by_role("combobox", name="Method").wait_for()

    def settle(self) -> None:
        """Wait until the page shows what its script last made, and no run of it is under way."""
        self.until(lambda: self.reruns.over == self.reruns.asked > 0 and self.page.evaluate(SETTLED))

    def choose(self, method: str, tokens: int) -> None:
        self.pick("Method", method)
        self.write(self.page.get_by_label("New tokens, at most"), str(tokens))

    def pick(self, name: str, option: str) -> None:
        """Take an option of a select box, until it stands there after a whole run of the script."""
        box = self.page.get_by_role("combobox", name=name)

        def picked() -> bool:
            self.settle()
            if box.input_value() == option:
                return True
            box.click()
            self.page.get_by_role("option", name=option, exact=True).click()
            return False

        self.until(picked)

    def write(self, field, text: str, key: str = "Enter") -> None:
        """Type into a field and send it with `key`, until it stands there after a whole run of the script."""
        def written() -> bool:
            self.settle()
            if field.input_value() == text:
                return True
            field.fill(text)
            field.press(key)
            return False

        self.until(written)

    def decode(self, prompt: str) -> str:
        """Type the prompt, press Decode, and return the id of the run that the link then holds."""
        before = self.run_id()
        self.write(self.prompt(), prompt, "Control+Enter")
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

    def until(self, holds, seconds: float = PATIENCE) -> None:
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
