"""What an open, polled page costs the decode: pairs of decodes of one prompt, through the page and by the command line.

    python -m bench.page_cost [--pairs 24] [--tokens 64] [--method bastion] [--json FILE]

Each pair is one decode in the app, with a Chromium of its own that shows and polls it, and one in a process without an
app (`bench.line_decoder`), in alternating order; both keep their model, trace and save every step. Chromium runs as a
person's would: Playwright presses Decode and then lets go of it, so that no debugger hears the page's traffic. Two
ratios of page over command line are taken: of the seconds of the decode steps, by their own clocks, and of the wall
from the first saved step to the last. Needs the packages of requirements-dev.txt and a Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from bastion.records import RunStore
from bastion.records.schema import RUN_JSON
from bench.ending import in_one_sentence, write_results
from bench.measure import spread
from bench.options import note
from bench.tables import Table

PROMPT = "A farmer has 17 sheep and buys 5 more. How many sheep are there now? Explain step by step, and check the answer."
ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120
"""Seconds after which something awaited is given up."""
SMALLEST_WAIT = 0.002
PRESS = """() => setTimeout(() => [...document.querySelectorAll('[data-testid=stMain] button')]
  .find(button => button.innerText.trim() === 'Decode').click(), 400)"""
"""Presses Decode once the debugger is gone."""


def measure(pairs: int, tokens: int, method: str) -> list[dict[str, Any]]:
    """One dict a pair: {"page": told, "line": told}, told with tokens, seconds (of the decode steps) and wall."""
    from playwright.sync_api import sync_playwright

    from bastion.models.fetch import fetch_default
    from tests.browser import StudioServer, studio_home

    found = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder) / "home"
        home.mkdir()
        server = StudioServer(studio_home(home, fetch_default()))
        stack.callback(server.kill)
        line = CommandLine(home, method, tokens)
        stack.callback(line.end)
        tab = _Tab(stack.enter_context(sync_playwright()), server, Path(folder) / "chromium", line.decode()["run"])
        stack.callback(tab.end)
        tab.decode()   # imports torch, loads the model; the line has just done so
        for turn in range(-1, pairs):
            if turn >= 0:
                note(f"page cost: pair {turn + 1} of {pairs}")
            told = {who: {"line": line.decode, "page": tab.decode}[who]() for who in (("line", "page") if turn % 2 else ("page", "line"))}
            if turn >= 0:
                found.append(told)
    return found


class CommandLine:
    """`generate --save` in a process that keeps its model: a fresh one would pay for its first steps."""

    def __init__(self, home: Path, method: str, tokens: int) -> None:
        # in a session of its own, as the server is: systems share their processors out by session
        self.process = subprocess.Popen([sys.executable, "-m", "bench.line_decoder", method, str(tokens)], cwd=ROOT, text=True,
                                        env={**os.environ, "BASTION_HOME": str(home)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)

    def decode(self) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(PROMPT) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class _Tab:
    """A Chromium of its own. `first`: a run whose link brings prompt and settings into the form."""

    def __init__(self, playwright: Any, server: Any, profile: Path, first: str) -> None:
        from tests.browser import FLAGS, find_browser

        self.playwright, self.server, self.first = playwright, server, first
        self.process = subprocess.Popen([find_browser(), "--headless", *FLAGS, "--window-size=1440,1000", "--remote-debugging-port=0",
                                         f"--user-data-dir={profile}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        port = profile / "DevToolsActivePort"
        _until(lambda: port.exists() and "\n" in port.read_text())
        self.address = f"http://127.0.0.1:{port.read_text().splitlines()[0]}"
        self.store = RunStore(server.runs())

    def decode(self) -> dict[str, Any]:
        """Press Decode on a page, let go of it, and wait for its run and for the plain decoding that follows it; leave the page blank."""
        before = self._runs()
        self._drive(lambda page: self._press(page))
        _until(lambda: self._runs() - before)
        (new,) = self._runs() - before
        run_id = new.removeprefix(".").removesuffix(".partial")
        wall = self._watch(run_id)
        _until(lambda: self._measured(run_id))
        totals = self._info(run_id)["totals"]
        self._drive(lambda page: page.goto("about:blank"))
        return {"run": run_id, "tokens": totals["tokens"], "seconds": totals["seconds_decode"], "wall": wall}

    def _info(self, run_id: str) -> dict[str, Any]:
        """run.json alone: reading the trees again and again would take the device from what is being timed."""
        try:
            return json.loads((self.store.root / run_id / RUN_JSON).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}

    def _measured(self, run_id: str) -> bool:
        """Whether the plain decoding that follows the run, for its speedup, is over: until then the device is not free."""
        return bool((self._info(run_id).get("yardstick") or {}).get("seconds"))

    def _press(self, page: Any) -> None:
        page.set_default_timeout(1e3 * PATIENCE)
        page.goto(f"{self.server.url}/?run={self.first}")
        page.get_by_role("combobox", name="Method").wait_for()
        page.wait_for_function("document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'")
        page.evaluate(PRESS)

    def _drive(self, work: Any) -> None:
        browser = self.playwright.chromium.connect_over_cdp(self.address)
        try:
            work(browser.contexts[0].pages[0])
        finally:
            browser.close()   # of the connection; the page stays

    def _runs(self) -> set[str]:
        root = self.store.root
        return {entry.name.removeprefix(".").removesuffix(".partial") for entry in root.iterdir() if not entry.name.startswith(".trash")}

    def _watch(self, run_id: str) -> float:
        """Wall seconds from the first step on disk to the last, to a few milliseconds, by the growth of the file of steps."""
        stream, size, first, last = self.store.root / f".{run_id}.partial" / "steps.arrows", None, 0.0, 0.0
        while True:
            now = _size(stream)
            if now is None and first:
                return last - first
            if now is not None and now != size:
                last, size = perf_counter(), now
                if not first and steps_in(stream):   # before the prefill is there, the file holds a schema
                    first = last
            time.sleep(SMALLEST_WAIT)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def steps_in(stream: Path) -> int:
    """Steps in the stream of a run that is being written, the prefill among them; 0 when there is none (any more)."""
    import pyarrow as pa

    count = 0
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream.read_bytes())) as reader:
            while True:
                reader.read_next_batch()
                count += 1
    except (StopIteration, OSError, EOFError, pa.ArrowInvalid):
        return count   # a batch that is half written is none


def _size(file: Path) -> int | None:
    """Bytes; None once the file has moved."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _until(holds: Any) -> None:
    end = perf_counter() + PATIENCE
    while not holds():
        if perf_counter() > end:
            raise TimeoutError(f"waited {PATIENCE} s in vain")
        time.sleep(SMALLEST_WAIT)


def summarise(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ratios of page over command line, pair by pair: of the steps' own seconds and of the wall; and the tokens of each."""
    tokens = sorted({told["tokens"] for pair in pairs for told in pair.values()})
    return [{"measure": name, "tokens": tokens, **spread([pair["page"][key] / pair["line"][key] for pair in pairs]).json(),
             "page_ms": 1e3 * spread([pair["page"][key] for pair in pairs]).median, "line_ms": 1e3 * spread([pair["line"][key] for pair in pairs]).median}
            for key, name in (("seconds", "decode steps"), ("wall", "first step to last"))]


def tabulate(rows: list[dict[str, Any]]) -> Table:
    tokens = " to ".join(str(one) for one in dict.fromkeys((rows[0]["tokens"][0], rows[0]["tokens"][-1])))
    return Table(["open page over command line", "median ratio", "quartiles", "page ms", "command line ms"],
                 [[row["measure"], f"{row['median']:.3f}", f"{row['low']:.3f}-{row['high']:.3f}", f"{row['page_ms']:.0f}", f"{row['line_ms']:.0f}"]
                  for row in rows], f"{rows[0]['count']} interleaved pairs of {tokens} tokens.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--method", default="bastion")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    pairs = measure(asked.pairs, asked.tokens, asked.method)
    rows = summarise(pairs)
    write_results(asked.json, {"pairs": pairs, "rows": rows})
    print(tabulate(rows).text())


if __name__ == "__main__":
    with in_one_sentence():
        main()
