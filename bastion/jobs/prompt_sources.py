"""Where the published prompt sets come from and how their rows become prompts.

Hub ids, splits and prompt texts are those of the published benchmark programs of BASTION
(github.com/kaist-ai-osi-lab/BASTION, bastion/benchmark.py) and of DFlash (github.com/z-lab/dflash,
dflash/benchmark.py). Two sets are published as loading scripts, which `datasets` no longer runs and
we never would: their data files are read instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Format = Callable[[Row], list[str]]

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
HUMANEVAL = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n"
LIVECODE = "Write a complete solution to the following programming problem.\nReturn only the solution code.\n\n"


@dataclass(frozen=True, slots=True)
class HubSource:
    """One published set. `files` are read with the builder `path` ("json") where it ships no plain data set."""

    name: str
    title: str
    group: str                   # "paper" or "longbench"
    hub: str                     # id on the Hugging Face hub, shown to a person and kept with the results
    format: Format
    config: str | None = None
    split: str = "test"
    revision: str | None = None
    files: tuple[str, ...] = ()

    def load_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of `datasets.load_dataset`. Rows of a set of gigabytes are streamed, not stored."""
        if self.files:
            return ["json"], {"data_files": list(self.files), "split": "train", "streaming": True}
        named = {"revision": self.revision} if self.revision else {}
        return [self.hub, *([self.config] if self.config else [])], {"split": self.split, **named}


def _text(row: Row, *names: str) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value:
            return value
    raise KeyError(names[0])


def _question(*names: str) -> Format:
    return lambda row: [_text(row, *names) + BOXED]


def _humaneval(row: Row) -> list[str]:
    return [HUMANEVAL + _text(row, "prompt") + "\n```"]


def _mbpp(row: Row) -> list[str]:
    return [_text(row, "prompt")]


def _livecode(row: Row) -> list[str]:
    return [LIVECODE + _text(row, "question_content", "question", "prompt")]


def _mt_bench(row: Row) -> list[str]:
    return [str(turn) for turn in row["prompt"]]


def _alpaca(row: Row) -> list[str]:
    more = row.get("input")
    return [_text(row, "instruction") + (f"\n\n{more}" if more else "")]


def _longbench(row: Row) -> list[str]:
    return [f"{row['context']}\n\n{row['input']}"]


_LIVECODE_HUB, _LIVECODE_REVISION = "livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
_LONGBENCH_HUB = "THUDM/LongBench"
_LONGBENCH = ("qasper", "multifieldqa_en", "gov_report", "multi_news", "triviaqa", "samsum", "passage_retrieval_en")

PAPER = (
    HubSource("gsm8k", "GSM8K", "paper", "openai/gsm8k", _question("question"), config="main"),
    HubSource("math500", "MATH-500", "paper", "HuggingFaceH4/MATH-500", _question("problem")),
    HubSource("aime25", "AIME 2025", "paper", "math-ai/aime25", _question("problem", "question")),
    HubSource("humaneval", "HumanEval", "paper", "openai/openai_humaneval", _humaneval),
    HubSource("mbpp", "MBPP", "paper", "google-research-datasets/mbpp", _mbpp, config="sanitized"),
    # release_v2 is the first two of its data files
    HubSource("lcb", "LiveCodeBench", "paper", _LIVECODE_HUB, _livecode, revision=_LIVECODE_REVISION, files=tuple(
        f"hf://datasets/{_LIVECODE_HUB}@{_LIVECODE_REVISION}/{file}" for file in ("test.jsonl", "test2.jsonl"))),
    HubSource("mt-bench", "MT-Bench", "paper", "HuggingFaceH4/mt_bench_prompts", _mt_bench, split="train"),
    HubSource("alpaca", "Alpaca", "paper", "tatsu-lab/alpaca", _alpaca, split="train"),
)
"""The eight sets of the paper's main table, in its order."""

LONGBENCH = tuple(
    HubSource(name, f"LongBench {name}", "longbench", _LONGBENCH_HUB, _longbench, config=name,
              files=(f"zip://data/{name}.jsonl::hf://datasets/{_LONGBENCH_HUB}/data.zip",))
    for name in _LONGBENCH)
"""The seven English sets of LongBench that the paper measures long contexts with."""

HUB: dict[str, HubSource] = {source.name: source for source in (*PAPER, *LONGBENCH)}

ALIASES = {"aime2025": "aime25", "human_eval": "humaneval", "livecodebench": "lcb",
           **{f"longbench-{name}": name for name in _LONGBENCH}}
"""Other names that the published program takes."""

GROUPS = {"paper-short": tuple(s.name for s in PAPER), "longbench": tuple(s.name for s in LONGBENCH)}
"""Names that stand for several sets."""
