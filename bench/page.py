"""What a person waits for on the page, and what an open page costs the decode.

    python -m bench.page [--rounds 4] [--tokens 64] [--method bastion] [--json FILE]

A server of its own with a Chromium. Times: first paint and first answer of Explore; the first step on screen after
the click; how long after a step was saved it stands on the page; an arrow key to the next step drawn. Cost: the same
prompt decoded through the page, which polls and draws it, and by a process without one that decodes and saves as
`python -m bastion generate --save` does, both with their model loaded and warm, in turn; the ratio is of the seconds
that the decode steps took. Needs the packages of requirements-dev.txt and a Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from bastion.cli.output import table
from bastion.records import RunStore
from bench.measure import spread
from bench.options import note

PROMPT = "A farmer has 17 sheep and buys 5 more. How many sheep are there now? Explain step by step, and check the answer."
ROOT = Path(__file__).resolve().parent.parent
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
STEP = """() => new Promise(done => {
  const part = name => { for (const host of document.querySelectorAll('*')) {
      const found = (host.shadowRoot ?? host).querySelector?.(`[data-testid="${name}"]`); if (found) return found; } };
  const label = part('step-label'), before = label.textContent, begun = performance.now();
  const look = () => label.textContent !== before ? requestAnimationFrame(() => done(performance.now() - begun))
    : performance.now() - begun > 2000 ? done(null) : requestAnimationFrame(look);
  document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true, composed: true }));
  look(); })"""


def measure(rounds: int, tokens: int, method: str) -> dict[str, list[float]]:
    """Lists of values: "first paint", "ready", "first step", "lag", "step to step" (seconds), and "cost" (page over
    command line, a ratio a round)."""
    from playwright.sync_api import sync_playwright

    from bastion.models.fetch import fetch_default
    from tests.browser import FLAGS, Screen, StudioServer, find_browser, studio_home

    found: dict[str, list[float]] = {name: [] for name in ("first paint", "ready", "first step", "lag", "step to step", "cost")}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = StudioServer(studio_home(Path(folder), fetch_default()))
        chromium = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        line = _CommandLine(server.home, method, tokens)
        try:
            line.seconds()   # loads, calibrates when there is no calibration, and warms up
            for turn in range(rounds):
                note(f"page: round {turn + 1} of {rounds}")
                screen = Screen(chromium, server)
                by_line = line.seconds() if turn % 2 else None
                begun = perf_counter()
                screen.open()
                ready = perf_counter() - begun
                screen.choose(method, tokens)
                run_id, first_step, lags = _watch(screen, RunStore(server.runs()))
                if turn:   # the first opening imports torch, the first decode loads the model
                    found["ready"].append(ready)
                    found["first paint"].append(screen.page.evaluate(PAINT) / 1e3)
                    found["first step"].append(first_step)
                    found["lag"] += lags
                    found["step to step"] += [one / 1e3 for one in (screen.page.evaluate(STEP) for _ in range(6)) if one is not None]
                by_page = RunStore(server.runs()).open(run_id).info["totals"]["seconds_decode"]
                screen.context.close()
                by_line = by_line or line.seconds()
                if turn:
                    found["cost"].append(by_page / by_line)
        finally:
            line.end()
            chromium.close()
            server.kill()
    return found


class _CommandLine:
    """`generate --save` in a process of its own that keeps its model: a fresh one would pay for its first steps."""

    def __init__(self, home: Path, method: str, tokens: int) -> None:
        # in a session of its own, as the server is: systems share their processors out by session
        self.process = subprocess.Popen([sys.executable, "-m", "bench.line_decoder", method, str(tokens)], cwd=ROOT, text=True,
                                        env={**os.environ, "BASTION_HOME": str(home)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)

    def seconds(self) -> float:
        """Of the decode steps of one decode."""
        self.process.stdin.write(json.dumps(PROMPT) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def _watch(screen: Any, store: RunStore) -> tuple[str, float, list[float]]:
    """Decode the prompt: the run's id, seconds from the click to the first step on screen, and for each newest
    step seen how long it stood on disk before."""
    screen.prompt().fill(PROMPT)
    screen.prompt().press("Control+Enter")
    before = screen.run_id()
    begun = perf_counter()
    screen.press("Decode")
    screen.until(lambda: screen.run_id() not in ("", before))
    run_id, saved, shown, first, lags = screen.run_id(), {}, 0, 0.0, []
    stream = store.root / f".{run_id}.partial" / "steps.arrows"
    while True:
        now, on_disk = perf_counter(), _steps(stream)
        for step in range(len(saved), on_disk):
            saved[step] = now
        label = screen.part("step-label")
        words = label.inner_text() if label.count() else ""
        newest = int(words.rpartition(" of ")[2].replace("\u2009", "")) if " of " in words else 0
        if newest > shown:
            first = first or perf_counter() - begun
            if newest in saved:
                lags.append(perf_counter() - saved[newest])
            shown = newest
        status = screen.status()
        # the page goes on to decode plainly, for the speedup it shows; the device must be free again
        if status.startswith(("Done", "Stopped")) and "so far" not in status and "Next:" not in status:
            return run_id, first, lags
        screen.page.wait_for_timeout(10)


def _steps(stream: Path) -> int:
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


def summarise(found: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row a measure that has values: a spread in ms, of the cost as a plain ratio."""
    return [{"measure": name, "unit": "x" if name == "cost" else "ms", **spread([one if name == "cost" else 1e3 * one for one in some]).json()}
            for name, some in found.items() if some]


def print_rows(rows: list[dict[str, Any]]) -> str:
    digits = {"x": 3, "ms": 0}
    return table(["page", "unit", "median", "quartiles", "values"],
                 [[row["measure"], row["unit"], f"{row['median']:.{digits[row['unit']]}f}",
                   f"{row['low']:.{digits[row['unit']]}f}-{row['high']:.{digits[row['unit']]}f}", str(row["count"])] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--method", default="bastion")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = summarise(measure(asked.rounds, asked.tokens, asked.method))
    if asked.json is not None:
        asked.json.write_text(json.dumps({"page": rows}, indent=1) + "\n", encoding="utf-8")
    print(print_rows(rows))


if __name__ == "__main__":
    main()
