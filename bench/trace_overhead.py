"""What tracing costs: the default pair decodes with the trace on and off, in turn, and the step times are compared.

    python -m bench.trace_overhead [--rounds 6] [--tokens 64] [--method bastion]

The two decodes of a round follow each other and their order turns, so a machine that slows down
does so for both. Both emit the same tokens, so step i of one is compared with step i of the
other. The clock is the wall between one record and the next, not `step.seconds`: the trace is
worked out after a step's own clock has stopped, and must not hide there.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

from bench.ending import in_one_sentence
from bastion import decode, load_pair
from bastion.models.quiet import quieten_libraries

PROMPTS = (
    "Explain in simple words how a bicycle stays upright.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A farmer has 17 sheep and buys 5 more. How many sheep are there now? Explain.",
)


def step_seconds(pair, prompt: str, method: str, tokens: int, trace: bool) -> list[float]:
    """Wall seconds from each record to the next; the prefill, which no tree is part of, is left out."""
    seconds = []
    begun = perf_counter()
    for record in decode(pair, prompt, method=method, max_new_tokens=tokens, trace=trace):
        done = perf_counter()
        if record.kind == "decode":
            seconds.append(done - begun)
        begun = perf_counter()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="rounds over the prompts")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each decode")
    parser.add_argument("--method", default="bastion", help="method to decode with")
    parser.add_argument("--pair", default="smollm2-135m", help="preset, or a folder with a target")
    parser.add_argument("--drafter", help="drafter of a target given by folder")
    arguments = parser.parse_args()

    quieten_libraries()
    pair = load_pair(arguments.pair, drafter=arguments.drafter)
    for trace in (True, False):  # kernels are chosen and the device is calibrated before anything counts
        step_seconds(pair, PROMPTS[0], arguments.method, 8, trace)
    ratios: list[float] = []
    totals = {True: 0.0, False: 0.0}
    for turn in range(arguments.rounds):
        for place, prompt in enumerate(PROMPTS):
            order = (True, False) if (turn + place) % 2 else (False, True)
            seconds = {trace: step_seconds(pair, prompt, arguments.method, arguments.tokens, trace) for trace in order}
            if len(seconds[True]) != len(seconds[False]):
                raise SystemExit("The decodes with and without trace took different steps: they cannot be compared.")
            ratios += [on / off for on, off in zip(seconds[True], seconds[False], strict=True)]
            for trace in totals:
                totals[trace] += sum(seconds[trace])
    print(f"{arguments.method} on {pair.device_name}, {pair.dtype_name}: {len(ratios)} steps each way")
    print(f"wall time a step with trace / without: median of steps {median(ratios):.4f}, of summed times {totals[True] / totals[False]:.4f}")


if __name__ == "__main__":
    with in_one_sentence():
        main()
