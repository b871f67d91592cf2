"""How calibrations, crossovers and drift are said: the words beside the latency charts."""

from __future__ import annotations

import unicodedata

import pandas as pd

from bastion.analysis.drift import BOUNDS, FEWEST, LAST, Drift
from bastion.figures import numbers
from bastion.latency import Calibration, Crossover, moment

ESTIMATOR_NAMES = {"roofline": "calibrated roofline", "raw": "raw roofline", "roofline-ema": "roofline with drift", "ema": "moving average",
                   "table": "measured table", "convex": "convex cost"}

FORMULA = (r"T(n, c) = \max\begin{cases}"
           r"\alpha_m \cdot \mathrm{bytes}(n, c)\, /\, \mathrm{bandwidth} + \beta_m \\"
           r"\alpha_c \cdot \mathrm{FLOPs}(n, c)\, /\, \mathrm{peak} + \beta_c\end{cases}")


def estimator_name(name: str) -> str:
    """An estimator of the registry as people read it; one without a name of its own keeps the registry's."""
    return ESTIMATOR_NAMES.get(name, name)


def calibration_label(calibration: Calibration) -> str:
    """One line that names a calibration, the same on every machine: the time is UTC."""
    time = moment(calibration.made_at)
    when = f"{time:%Y-%m-%d %H:%M:%S} UTC" if time else calibration.made_at
    parts = (when, calibration.target, calibration.dtype, calibration.device_name or calibration.device_key,
             "shipped profile" if calibration.shipped else "")
    text = ", ".join(" ".join(part.split()) for part in parts if part)
    return "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))[:160]


def labels(calibrations: list[Calibration]) -> dict[str, str]:
    """Calibration id -> label; where two labels are alike, the id stands behind them."""
    texts = {one.id: calibration_label(one) for one in calibrations}
    alike = {text for text in texts.values() if list(texts.values()).count(text) > 1}
    return {key: f"{text} ({key})" if text in alike else text for key, text in texts.items()}


def crossover_words(at: Crossover) -> str:
    """Where compute overtakes memory, in a few words."""
    if at.nodes is None and at.from_first:
        begin = "compute from the first node"
    elif at.nodes is None:
        return f"never within the {numbers.count(at.most)} nodes probed"
    else:
        begin = f"{numbers.count(at.nodes)} nodes"
    return begin if at.last == at.most else f"{begin}, up to {numbers.count(at.last)}"


def formula_with_numbers(calibration: Calibration) -> str:
    """The formula in LaTeX with this device's numbers; bandwidth and peak as they were measured or published."""
    line = calibration.roofline

    def tex(text: str) -> str:
        number, _, unit = text.partition(numbers.THIN) if text.endswith("s") else (text, "", "")
        return number.replace(numbers.THIN, r"\,") + (rf"\,\mathrm{{{unit}}}" if unit else "")

    def branch(alpha: float, counted: str, peak: str, beta: float) -> str:
        return rf"{tex(numbers.significant(alpha))} \cdot \mathrm{{{counted}}}(n, c)\, /\, {tex(peak)} + {tex(duration(beta))}"

    memory = branch(line.alpha_m, "bytes", bandwidth(line.peaks.bytes_per_second), line.beta_m)
    compute = branch(line.alpha_c, "FLOPs", throughput(line.peaks.flops_per_second), line.beta_c)
    return rf"T(n, c) = \max\begin{{cases}}{memory} \\ {compute}\end{{cases}}"


def duration(seconds: float) -> str:
    """Like `numbers.seconds`; what a fit leaves below a microsecond is nothing."""
    return numbers.seconds(seconds if seconds >= 1e-6 else 0.0)


def bandwidth(bytes_per_second: float) -> str:
    return f"{numbers.significant(bytes_per_second / 1e9)}{numbers.THIN}GB/s"


def throughput(flops_per_second: float) -> str:
    """In GFLOP/s below one TFLOP/s, as of a processor."""
    unit, size = ("TFLOP/s", 1e12) if flops_per_second >= 0.9995e12 else ("GFLOP/s", 1e9)
    return f"{numbers.significant(flops_per_second / size)}{numbers.THIN}{unit}"


def parameter_table(calibration: Calibration) -> pd.DataFrame:
    """Every number of the model, its unit beside it, and what it means."""
    line, peaks = calibration.roofline, calibration.peaks
    shape, source = line.shape, calibration.peaks_source
    rows = [
        ("α memory", numbers.significant(line.alpha_m), "How many times longer than at full bandwidth the bytes take; 1 is the peak."),
        ("β memory", duration(line.beta_m), "Fixed time of a pass held up by memory, whatever the tree."),
        ("α compute", numbers.significant(line.alpha_c), "How many times longer than at peak throughput the arithmetic takes."),
        ("β compute", duration(line.beta_c), "Fixed time of a pass held up by arithmetic, whatever the tree."),
        ("bandwidth", bandwidth(peaks.bytes_per_second), f"Memory bandwidth, {source}."),
        ("peak", throughput(peaks.flops_per_second), f"Matrix throughput, {source}."),
        ("weights", f"{numbers.significant(line.parameter_bytes / 1e6)}{numbers.THIN}MB",
         f"Bytes read at every pass, {line.bytes_per_value} a value; keys, values and activations come on top."),
        ("draft", numbers.seconds(calibration.draft_seconds), "Median time of one drafter pass."),
        ("other", numbers.seconds(calibration.other_seconds), "Median time to build the tree and to commit."),
        ("shape", f"{shape.layers} layers, width {numbers.count(shape.hidden)}",
         f"{shape.heads} heads, {shape.kv_heads} for keys and values, of {shape.head_dim}; feed-forward {numbers.count(shape.ffn)}; "
         f"vocabulary {numbers.count(shape.vocab)}, {'shared with' if shape.tied else 'apart from'} the head."),
    ]
    return pd.DataFrame(rows, columns=["parameter", "value", "what it means"])


def rule() -> str:
    """The rule of the drift verdict, in one sentence."""
    low, high = BOUNDS
    return (f"Drifting: over the last {LAST} runs the median of measured over predicted verify time lies outside "
            f"{low:g} to {high:g}. Fewer than {FEWEST} runs give no verdict.")


def verdict_words(drift: Drift) -> str:
    """The verdict in one sentence."""
    verdict = drift.verdict
    if not verdict.runs:
        return "No run has been made with this calibration yet."
    runs = f"{verdict.runs} run{'s' * (verdict.runs != 1)}"
    said = f"Over the last {runs} verifying took {numbers.ratio(verdict.ratio)} what was predicted"
    return {"unknown": f"{said}; a verdict needs {FEWEST} runs.", "ok": f"{said}: the calibration holds.",
            "drifting": f"{said}: the calibration no longer holds, measure again."}[verdict.state]
