"""What is raced end to end: our methods, and Hugging Face `generate` in three ways. One clock for all of them.

A decode is timed from its first token to its last; what reads the prompt is timed apart.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

from bastion import decode
from bastion.models.pair import Pair


@dataclass(slots=True)
class Decoded:
    """One decode. seconds: from the first token's arrival to the end; first_seconds: until it came.

    tokens: those behind the first. steps, nodes, and the seconds of the stages: our methods only.
    predicted: seconds of verification as the latency model had them, where a method has one.
    """

    tokens: int
    seconds: float
    first_seconds: float
    steps: int = 0
    nodes: int = 0
    draft: float = 0.0
    build: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    predicted: float = 0.0
    surrogate: float = 0.0

    def json(self) -> dict[str, Any]:
        return asdict(self)


Decoder = Callable[[list[int], int], tuple[Decoded, list[int]]]
"""(prompt ids, tokens at most) -> its times, and the ids it emitted."""


def our_decoder(pair: Pair, method: str) -> Decoder:
    """A method of the registry, without the trace."""

    def run(ids: list[int], tokens: int) -> tuple[Decoded, list[int]]:
        begun = perf_counter()
        steps = decode(pair, ids, method, max_new_tokens=tokens, trace=False)
        emitted = list(next(steps).emitted)
        first = perf_counter()
        told = Decoded(0, 0.0, first - begun)
        for step in steps:
            emitted += step.emitted
            told.steps += 1
            told.nodes += step.nodes
            told.surrogate += step.surrogate
            for stage in ("draft", "build", "verify", "commit"):
                setattr(told, stage, getattr(told, stage) + getattr(step.seconds, stage))
            told.predicted += step.predicted_verify_seconds or 0.0
        told.seconds, told.tokens = perf_counter() - first, len(emitted) - 1
        return told, emitted

    return run


class _FirstToken:
    """A streamer that notes when the first token after the prompt came."""

    def __init__(self) -> None:
        self.heard, self.first = 0, 0.0

    def put(self, value: torch.Tensor) -> None:
        self.heard += 1
        if self.heard == 2:   # the first is the prompt itself
            self.first = perf_counter()
            self.first_tokens = int(value.numel())

    def end(self) -> None:
        pass


def library_decoder(model: Any, stops: list[int], **options: Any) -> Decoder:
    """Hugging Face `generate`, greedy, with `options` such as prompt_lookup_num_tokens."""

    @torch.inference_mode()
    def run(ids: list[int], tokens: int) -> tuple[Decoded, list[int]]:
        streamer, inputs = _FirstToken(), torch.tensor([ids], device=model.device)
        begun = perf_counter()
        found = model.generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=tokens, do_sample=False,
                               eos_token_id=stops, pad_token_id=stops[0], streamer=streamer, **options)
        ended = perf_counter()
        emitted = found[0, len(ids):].tolist()
        return Decoded(len(emitted) - streamer.first_tokens, ended - streamer.first, streamer.first - begun), emitted

    return run


def load_library(pair: Pair) -> Any:
    """The pair's target as Hugging Face alone loads it: sdpa attention, the pair's number type."""
    from transformers import AutoModelForCausalLM

    from bastion.models import PRESETS

    source = PRESETS[pair.name].target if pair.name in PRESETS else pair.target.name
    return AutoModelForCausalLM.from_pretrained(source, dtype=pair.dtype, attn_implementation="sdpa").to(pair.device).eval()


def shallow(model: Any, layers: int) -> Any:
    """The same model with its first `layers` layers only, weights shared: an assistant of the library's own making."""
    config = copy(model.config)
    config.num_hidden_layers = layers
    with torch.device("meta"):
        made = type(model)(config)
    made.model.embed_tokens, made.model.norm = model.model.embed_tokens, model.model.norm
    made.model.layers = torch.nn.ModuleList(list(model.model.layers)[:layers])
    made.model.rotary_emb, made.lm_head = model.model.rotary_emb, model.lm_head
    made.generation_config = copy(model.generation_config)
    return made.to(model.dtype).eval()
