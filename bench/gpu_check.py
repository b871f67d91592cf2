"""What a CUDA device does with this project, stage by stage, each with its own time; `bench/gpu_check.sh` runs it.

    python -m bench.gpu_check --device cuda --out DIR [--tiny] [--stages device,correctness,...]

Every stage prints one line and leaves DIR/STAGE.json. One that fails, or is not done in its time, says so
and the next begins; the exit status is then 1. Weights are random in the shape of Qwen3-8B (bfloat16, made on
the device) and real for the default pair. Times are wall times around a device at rest, medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from bastion import decode
from bastion.decoding.calibrate import _random_tree, calibrate
from bastion.decoding.peaks import measure_peaks
from bastion.errors import UserError
from bastion.latency import Calibration, ModelShape, ProbeGrid, build_estimator, held_out_rmse
from bastion.latency.buckets import buckets_to
from bastion.models import static_forward
from bastion.models.device import synchronise
from bastion.models.pair import Pair
from bench.gpu_models import QWEN3_8B, TINY, in_fixed_shapes, random_pair
from bench.gpu_timing import close, seconds_of, text, verify_seconds, waits_counted

METHODS = ["ar", "dflash", "ddtree:16", "bastion", "bastion+ngram"]
BUDGETS = {"device": 20, "correctness": 70, "floor": 90, "calibration": 90, "steps": 60, "pair": 110, "profile": 10}
"""Seconds of each stage at most; 450 together."""


class OutOfTime(Exception):
    pass


@dataclass
class Check:
    """What the stages share. Big things are made when a stage first needs them."""

    device: torch.device
    out: Path
    tiny: bool
    results: dict[str, dict] = field(default_factory=dict)
    calibrations: list = field(default_factory=list)

    @property
    def nodes(self) -> tuple[int, ...]:
        return (1, 4, 8) if self.tiny else (1, 2, 4, 8, 16, 32, 64, 128, 256)

    @property
    def contexts(self) -> tuple[int, ...]:
        return (24, 48) if self.tiny else (512, 2048)

    @cached_property
    def eager(self) -> Pair:
        """The large target, in the shapes that come, operator by operator."""
        return random_pair(TINY if self.tiny else QWEN3_8B, self.device, torch.bfloat16, "tiny" if self.tiny else "Qwen/Qwen3-8B")

    @cached_property
    def graphed(self) -> Pair:
        return in_fixed_shapes(self.eager, graphs=True)


# -- stages ---------------------------------------------------------------------------------------


def device(check: Check) -> tuple[dict, str]:
    peaks = measure_peaks(check.device, torch.bfloat16)
    size = (1 << 20) if check.tiny else (1 << 33)
    source = torch.ones(size // 4, device=check.device)
    read = size / seconds_of(source.sum, check.device, 5)
    found = {"name": peaks.name, "torch": torch.__version__, "cuda": torch.version.cuda, "flops_per_second": peaks.flops_per_second,
             "copy_bytes_per_second": peaks.bytes_per_second, "read_bytes_per_second": read}
    return found, f"{peaks.name}, {peaks.flops_per_second / 1e12:.3g} TFLOP/s, copies {peaks.bytes_per_second / 1e12:.3g} TB/s, " \
                  f"reads {read / 1e12:.3g} TB/s"


def correctness(check: Check) -> tuple[dict, str]:
    """Float32, tiny random pairs of two shapes: fixed shapes and graphs against the plain forward, trees against `ar`."""
    checks: dict[str, bool] = {}
    shapes = {"grouped": TINY, "one key head": TINY | {"num_key_value_heads": 1, "num_hidden_layers": 3}}
    for name, shape in list(shapes.items())[: 1 if check.tiny else 2]:
        plain = random_pair(shape, check.device, torch.float32, name, positions=1024, spread=0.2)
        static, graphed = in_fixed_shapes(plain, graphs=False), in_fixed_shapes(plain, graphs=True)
        checks |= {f"{name}: {what}": ok for what, ok in verified_alike(plain, static, graphed).items()}
        prompt = np.random.default_rng(1).integers(shape["vocab_size"], size=40).tolist()
        tokens = 12 if check.tiny else 48
        expected = text(plain, prompt, "ar", tokens)
        for kind, pair in {"plain": plain, "static": static, "graphs": graphed}.items():
            for method in ["ar", "ddtree:16", "ngram:8", "dflash", "ddtree:60"][: 3 if check.tiny else 5]:
                checks[f"{name}: {method} {kind}"] = text(pair, prompt, method, tokens) == expected
            drawn = text(pair, prompt, "ddtree:16", tokens, temperature=0.8, seed=7)
            checks[f"{name}: drawn {kind}"] = drawn == text(plain, prompt, "ar", tokens, temperature=0.8, seed=7)
    wrong = [name for name, ok in checks.items() if not ok]
    if wrong:
        check.results["correctness"] = {"checks": checks}
        raise AssertionError(f"{len(wrong)} of {len(checks)} checks differ: {'; '.join(wrong)}")
    return {"checks": checks}, f"{len(checks)} checks agree"


def verified_alike(plain: Pair, *others: Pair) -> dict[str, bool]:
    """Logits and features of padded trees over steps, twice each so that graphs are replayed, to 1e-4 of the largest."""
    checks = {}
    for number, other in enumerate(others):
        random = np.random.default_rng(5)
        caches = [pair.target.new_cache(200) for pair in (plain, other)]
        ids = random.integers(plain.target.vocab_size, size=30).tolist()
        alike = close(*[pair.target.prefill(ids, cache).logits for pair, cache in zip((plain, other), caches)])
        for nodes in (1, 3, 3, 20, 20, 40, 40):
            tree = _random_tree(random, plain.target.vocab_size, nodes)
            path = torch.from_numpy(tree.path(tree.nodes - 1)).to(plain.device)
            outputs = [pair.target.verify(pair.target.lay_out(tree, cache.length), cache) for pair, cache in zip((plain, other), caches)]
            alike &= close(*(output.logits for output in outputs)) and close(*(output.features for output in outputs))
            for cache in caches:
                cache.commit(path)
            other.target.settle()
        checks[f"verify {('static', 'graphs')[number]}"] = alike
    return checks


def floor(check: Check) -> tuple[dict, str]:
    """Verify seconds against reading every weight once, for the plain forward and for fixed shapes without and with graphs."""
    target = check.eager.target
    shape = ModelShape.from_config(target.config)
    weights = target.dtype.itemsize * (shape.layer_weights + shape.head_weights)  # embeddings are looked up, norms are nothing
    bandwidth = check.results["device"]["read_bytes_per_second"]
    least = weights / bandwidth
    rows = []
    kinds = {"eager": (check.eager, None), "static": (in_fixed_shapes(check.eager, graphs=False), None), "graphs": (check.graphed, None),
             "graphs, attention fused": (in_fixed_shapes(check.eager, graphs=True), 1),
             "graphs, attention plain": (in_fixed_shapes(check.eager, graphs=True), 1 << 30)}
    random, usual = np.random.default_rng(0), static_forward.FUSED_FROM
    for kind, (pair, fused_from) in kinds.items():
        static_forward.FUSED_FROM = fused_from or usual
        try:
            cache = pair.target.new_cache(max(check.contexts) + max(check.nodes))
            pair.target.prefill(random.integers(target.vocab_size, size=max(check.contexts)).tolist(), cache)
            for context in check.contexts:
                for nodes in check.nodes:
                    seconds = verify_seconds(pair, cache, nodes, context, 3 if check.tiny else 9)
                    rows.append({"kind": kind, "nodes": nodes, "context": context, "seconds": seconds, "over_floor": seconds / least})
        finally:
            static_forward.FUSED_FROM = usual
        del cache
    check.eager.target.settle()
    found = {"weight_bytes": weights, "bytes_per_second": bandwidth, "floor_seconds": least, "rows": rows}
    at = {kind: next(row["over_floor"] for row in rows if row["kind"] == kind) for kind in kinds}
    return found, f"floor {1e3 * least:.3g} ms; at 1 node and {check.contexts[0]} tokens " + ", ".join(
        f"{kind} {over:.3g}x" for kind, over in list(at.items())[:3])


def calibration(check: Check) -> tuple[dict, str]:
    """The roofline fitted to padded sizes, and its error on held-out ones; each estimator beside it."""
    sizes = buckets_to(8) if check.tiny else buckets_to(512)
    grid = ProbeGrid(sizes, (16, 32, 48) if check.tiny else (256, 512, 1024, 2048, 4096), 3 if check.tiny else 9, 60.0)
    found, words = {}, []
    for kind, pair in {"graphs": check.graphed, "eager": check.eager}.items():
        made = calibrate(pair, grid=grid)
        if kind == "graphs":
            check.calibrations.append(made)
        errors = {}
        for name in ("raw", "roofline", "table", "convex"):
            with contextlib.suppress(UserError):
                errors[name] = held_out_rmse(build_estimator(name, made), made.probes, np.array(made.held_out))
        found[kind] = {"raw_rmse": made.raw_rmse, "calibrated_rmse": made.calibrated_rmse, "held_out": sum(made.held_out),
                       "probes": len(made.probes), "errors": errors, "draft_seconds": made.draft_seconds,
                       "other_seconds": made.other_seconds, "median_seconds": statistics.median(s for _, _, s in made.probes)}
        words.append(f"{kind} {1e3 * made.raw_rmse:.3g} ms raw, {1e3 * made.calibrated_rmse:.3g} ms fitted")
    return found, "held-out error: " + "; ".join(words)


def steps(check: Check) -> tuple[dict, str]:
    """What a step of the large pair takes by stage, and how often it waits for the device."""
    prompt = np.random.default_rng(2).integers(check.eager.target.vocab_size, size=max(check.contexts) // 2).tolist()
    found = {}
    for kind, pair in {"graphs": check.graphed, "eager": check.eager}.items():
        for method in ("ar", "ddtree:15" if check.tiny else "ddtree:63"):
            tokens = 6 if check.tiny else 40
            text(pair, prompt, method, tokens)  # captured, and warm
            with waits_counted(check.device) as waits:
                run = decode(pair, prompt, method, max_new_tokens=tokens, stop_token_ids=(), trace=False)
                next(run)
                waits.clear()
                begun = time.perf_counter()
                records = list(run)
                synchronise(check.device)
                wall = time.perf_counter() - begun
            stages = {name: statistics.median(getattr(r.seconds, name) for r in records) for name in ("draft", "build", "verify", "commit")}
            found[f"{method} {kind}"] = {"steps": len(records), "seconds": wall / len(records), "stages": stages,
                                         "waits_per_step": None if check.device.type != "cuda" else len(waits) / len(records)}
    words = ", ".join(f"{name} {1e3 * row['seconds']:.3g} ms ({row['waits_per_step']} waits)" for name, row in found.items())
    return found, f"a step: {words}"


def pair(check: Check) -> tuple[dict, str]:
    """The default pair end to end; with `tiny` a random one. Float32 for identity, the device's own type for speed."""
    from bastion.jobs.compare import compare_methods
    from bastion.jobs.prompt_files import Conversation, PromptSet, read_prompt_set
    from bastion.jobs.prompt_sets import OURS_FILE

    found, words = {}, []
    for dtype, prompts, tokens in (("float32", 3, 64), ("auto", 8, 128)):
        if check.tiny:
            loaded = in_fixed_shapes(random_pair(TINY, check.device, torch.float32, "tiny (random)", 512, 0.2), graphs=True)
            made = calibrate(loaded, grid=ProbeGrid((1, 2, 4, 8), (16, 32), 1, 2.0))
            sets, tokens = PromptSet("made up", (Conversation("1", ("5 6 7 8 5 6",)), Conversation("2", ("9 10 11",)))), 10
        else:
            from bastion import load_pair

            loaded = load_pair("smollm2-135m", device=str(check.device), dtype=dtype)
            made = calibrate(loaded, quick=True)
            sets = read_prompt_set(OURS_FILE, prompts)
        check.calibrations.append(made)

        def run(messages, method, limit, loaded=loaded, tokens=tokens):
            prompt = [int(word) for word in messages[-1]["content"].split()] if loaded.tokenizer is None else messages
            return list(decode(loaded, prompt, method, max_new_tokens=limit or tokens, trace=False))

        def say(ids, tokenizer=loaded.tokenizer):
            return " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids)

        rows = compare_methods(run, say, [sets], METHODS, greedy=True)
        found[dtype] = {"pair": loaded.name, "dtype": loaded.dtype_name, "padded": loaded.target.padded, "rows": rows}
        words.append(f"{loaded.dtype_name}: " + ", ".join(
            f"{row['method']} {row['speedup']:.3g}x tau {row['tau']:.3g} same {row['identical_to_ar']}/{row['prompts']}" for row in rows))
        if check.tiny:
            break
    return found, "; ".join(words)


def profile(check: Check) -> tuple[dict, str]:
    """The calibrations made here, in one file, since few files come back; `--unpack` makes files of them."""
    if not check.calibrations:
        raise UserError("nothing was calibrated")
    found = {}
    for made in check.calibrations:
        words = re.sub(r"[^a-z0-9.]+", "-", f"{made.device_name} {made.target.split('/')[-1]} {made.dtype}".lower()).strip("-")
        found[f"{words}.json"] = made.to_json()
    return {"calibrations": found}, ", ".join(found)


def unpack(file: Path, folder: Path) -> int:
    """Write the calibrations of a `profile.json` as files that `Calibration.load` reads, for `assets/profiles/`."""
    for name, content in json.loads(file.read_text(encoding="utf-8"))["calibrations"].items():
        print(Calibration.from_json(content, name).save(folder / Path(name).name))
    return 0


STAGES: dict[str, Callable[[Check], tuple[dict, str]]] = {
    "device": device, "correctness": correctness, "floor": floor, "calibration": calibration, "steps": steps, "pair": pair,
    "profile": profile,
}


# -- running them ---------------------------------------------------------------------------------


def run_stage(name: str, check: Check) -> bool:
    """Whether it was done; its line is printed and its file written either way."""
    def stop(*_) -> None:
        raise OutOfTime(f"not done in {BUDGETS[name]} s")

    begun, ok = time.perf_counter(), True
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(BUDGETS[name])
    try:
        check.results[name], words = STAGES[name](check)
    except Exception as error:
        ok, words = False, f"FAILED: {type(error).__name__}: {error}"
        check.results.setdefault(name, {})["failed"] = traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    took = time.perf_counter() - begun
    content = {"stage": name, "ok": ok, "seconds": took, **check.results[name]}
    (check.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: {words} [{took:.0f} s]", flush=True)
    return ok


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to try the script itself out")
    parser.add_argument("--unpack", type=Path, metavar="PROFILE_JSON", help="run nothing; make files of that profile.json in --out")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"some of {', '.join(STAGES)}, in order")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.unpack:
        return unpack(options.unpack, options.out)
    check = Check(torch.device(options.device), options.out, options.tiny)
    done = [run_stage(name, check) for name in options.stages.split(",")]
    print(f"{sum(done)} of {len(done)} stages done")
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
