"""What a person waits for on the page, and what an open page costs the decode.

    python -m bench.page [--rounds 6] [--pairs 24] [--tokens 64] [--method bastion] [--json FILE]

A server of its own with a Chromium. Times: first paint and first answer of Explore; the first step on screen after
the click; how long after a step was saved it stands on the page; an arrow key to the next step drawn. The cost is
that of `bench.page_cost`. Needs the packages of requirements-dev.txt and a Chromium.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from bastion.records import RunStore
from bench import page_cost
from bench.ending import in_one_sentence, write_results
from bench.measure import spread
from bench.options import note
from bench.page_cost import PROMPT, steps_in
from bench.tables import Table

MEASURES = {"first paint": "first paint", "ready": "form ready", "first step": "first step on screen", "lag": "lag of the newest step",
            "step to step": "step to step, by arrow key"}
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
    """Seconds, by name: "first paint", "ready", "first step", "lag", "step to step"."""
    from playwright.sync_api import sync_playwright

    from bastion.models.fetch import fetch_default
    from tests.browser import FLAGS, Screen, StudioServer, find_browser, studio_home

    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = StudioServer(studio_home(Path(folder), fetch_default()))
        chromium = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        try:
            for turn in range(-1, rounds):   # the first opening imports torch, the first decode loads the model
                note(f"page: round {turn + 1} of {rounds}")
                screen = Screen(chromium, server)
                begun = perf_counter()
                screen.open()
                ready = perf_counter() - begun
                screen.choose(method, tokens)
                first_step, lags = _watch(screen, RunStore(server.runs()))
                if turn >= 0:
                    found["ready"].append(ready)
                    found["first paint"].append(screen.page.evaluate(PAINT) / 1e3)
                    found["first step"].append(first_step)
                    found["lag"] += lags
                    found["step to step"] += [one / 1e3 for one in (screen.page.evaluate(STEP) for _ in range(6)) if one is not None]
                screen.context.close()
        finally:
            chromium.close()
            server.kill()
    return found


def _watch(screen: Any, store: RunStore) -> tuple[float, list[float]]:
    """Decode the prompt: seconds from the click to the first step on screen, and for each newest step seen how long it
    stood on disk before."""
    screen.prompt().fill(PROMPT)
    screen.prompt().press("Control+Enter")
    before = screen.run_id()
    begun = perf_counter()
    screen.press("Decode")
    screen.until(lambda: screen.run_id() not in ("", before))
    run_id, saved, shown, first, lags = screen.run_id(), {}, 0, 0.0, []
    stream = store.root / f".{run_id}.partial" / "steps.arrows"
    while True:
        now, on_disk = perf_counter(), steps_in(stream)
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
            return first, lags
        screen.page.wait_for_timeout(10)


def summarise(found: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row a measure that has values: a spread in ms."""
    return [{"measure": name, **spread([1e3 * one for one in some]).json()} for name, some in found.items() if some]


def tabulate(rows: list[dict[str, Any]]) -> Table:
    return Table(["page", "median ms", "quartiles", "values"],
                 [[MEASURES[row["measure"]], f"{row['median']:.0f}", f"{row['low']:.0f}-{row['high']:.0f}", str(row["count"])] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=24, help="pairs of decodes for the cost; 0 leaves it out")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--method", default="bastion")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    times = summarise(measure(asked.rounds, asked.tokens, asked.method))
    print(tabulate(times).text())
    cost = page_cost.summarise(page_cost.measure(asked.pairs, asked.tokens, asked.method)) if asked.pairs else []
    if cost:
        print(page_cost.tabulate(cost).text())
    write_results(asked.json, {"times": times, "cost": cost})


if __name__ == "__main__":
    with in_one_sentence():
        main()
