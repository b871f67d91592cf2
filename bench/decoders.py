"""What is raced end to end: our methods, and Hugging Face `generate` in three ways. One clock for all of them.

A decode is timed from its first token to its last, and apart from it the time until the first token came, which is the
reading of the prompt; loading and warming up are in neither. `generate` runs as people run it: sdpa attention, bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from bastion import decode
from bastion.models.pair import Pair


ASSISTANT_LAYERS = 8


@dataclass(slots=True)
class Decoded:
    """One decode. seconds: from the first token's arrival to the end; first_seconds: until it came.

    tokens: those that came after the first (of assisted `generate`: after the first few, which come at once); emitted: all.
    dtype: number type of the target. steps, nodes, and the seconds of the stages: our methods only.
    predicted: seconds of verification as the latency model had them, where a method has one.
    """

    tokens: int
    seconds: float
    first_seconds: float
    emitted: int = 0
    dtype: str = ""
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
        told = Decoded(0, 0.0, first - begun, dtype=pair.dtype_name)
        for step in steps:
            emitted += step.emitted
            told.steps += 1
            told.nodes += step.nodes
            told.surrogate += step.surrogate
            for stage in ("draft", "build", "verify", "commit"):
                setattr(told, stage, getattr(told, stage) + getattr(step.seconds, stage))
            told.predicted += step.predicted_verify_seconds or 0.0
        told.seconds, told.tokens, told.emitted = perf_counter() - first, len(emitted) - 1, len(emitted)
        return told, emitted

    return run


class _FirstToken:
    """A streamer that notes when the first token after the prompt came."""

    def __init__(self) -> None:
        self.heard, self.first, self.first_tokens = 0, 0.0, 0

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
        dtype = str(model.dtype).removeprefix("torch.")
        return Decoded(len(emitted) - streamer.first_tokens, ended - streamer.first, streamer.first - begun, len(emitted), dtype), emitted

    return run


def load_library(pair: Pair) -> Any:
    """The pair's target as Hugging Face alone loads it, in sdpa attention and bfloat16 whatever the pair runs in."""
    from transformers import AutoModelForCausalLM

    from bastion.models import PRESETS

    source = PRESETS[pair.name].target if pair.name in PRESETS else pair.target.name
    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, attn_implementation="sdpa").to(pair.device).eval()


def assistant_of(model: Any, pair: Pair) -> Any:
    """What drafts for the library's assisted generation: the small language model that the pair has beside it, else the
    target's own first layers, untrained for it."""
    small = next((one.folder for one in pair.beside if one.gives == "levels"), None)
    return shallow(model, min(ASSISTANT_LAYERS, pair.target.layers)) if small is None else small_model(model, small)


def small_model(model: Any, folder: Path) -> Any:
    """The causal language model in `folder` as the library runs it, with the embedding and head of `model` where it has
    none of its own."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    from bastion.drafters.small_lm_config import SHARED

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if SHARED not in config.to_dict():
        made = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype, attn_implementation="sdpa", local_files_only=True)
        return made.to(model.device).eval()
    vocabulary, config.vocab_size, config.pad_token_id = config.vocab_size, 1, None   # what is made here is thrown away
    made = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    made.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    made = made.to(model.device, model.dtype).eval()
    made.set_input_embeddings(model.get_input_embeddings())
    made.set_output_embeddings(model.get_output_embeddings())
    made.config.vocab_size, made.generation_config = vocabulary, copy(model.generation_config)
    return made


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
