"""The target answers prompts in batches: greedy answers with features, and sampled user turns.

One batch is left-padded so that all rows grow at the same column. Features are taken from the
very pass that writes the answer. Finished rows are dropped once they are a quarter of the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bastion.models.cache import KVCache

PREFILL_ROWS = {"cpu": 6}
PREFILL_ROWS_ELSEWHERE = 64


@dataclass(slots=True)
class Answer:
    """ids: the generated tokens, stop token included. features: [len(prompt) + len(ids) - 1, f] or None."""

    ids: list[int]
    features: torch.Tensor | None


@contextlib.contextmanager
def features_of(model: torch.nn.Module, layer_ids: tuple[int, ...]):
    """Collects the outputs of the given decoder layers; yields a callable that joins the last pass's.

    The joined features are [b, n, len(layer_ids) * hidden], in the order of `layer_ids`.
    """
    layers = model.get_decoder().layers
    caught: dict[int, torch.Tensor] = {}

    def keep(index):
        def hook(_module, _inputs, output):
            caught[index] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [layers[index].register_forward_hook(keep(index)) for index in layer_ids]
    try:
        yield lambda: torch.cat([caught[index] for index in layer_ids], dim=-1)
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def library_attention(model: torch.nn.Module):
    """Whole causal passes run with transformers' own fused attention, which is fastest at those."""
    usual = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


def prefill_rows(
    model: torch.nn.Module, ids: torch.Tensor, pad: torch.Tensor, cache: KVCache, joined, features: torch.Tensor | None
) -> torch.Tensor:
    """Read left-padded prompts [b, t], a few rows at a time, into a batched cache; last logits [b, vocab].

    Few rows stay in a CPU's cache, and the scores of a whole batch would not fit into memory.
    """
    at_once = PREFILL_ROWS.get(ids.device.type, PREFILL_ROWS_ELSEWHERE)
    count, longest = ids.shape
    columns = torch.arange(longest, device=ids.device)
    lowest = torch.finfo(model.dtype).min
    last = []
    with library_attention(model):
        for start in range(0, count, at_once):
            rows = slice(start, min(count, start + at_once))
            visible = (columns[None, :] <= columns[:, None]) & (columns >= pad[rows, None, None])
            # a padded query sees itself, so that its softmax is defined
            visible |= torch.eye(longest, dtype=torch.bool, device=ids.device)
            mask = torch.zeros_like(visible, dtype=model.dtype).masked_fill_(~visible, lowest)[:, None]
            part = KVCache(len(cache.layers), longest)
            positions = (columns - pad[rows, None]).clamp_min(0)
            out = model(
                input_ids=ids[rows], attention_mask=mask, position_ids=positions, cache=part, use_cache=True,
                logits_to_keep=1,
            )
            last.append(out.logits[:, -1])
            if features is not None:
                features[rows, :longest] = joined()
            for whole, piece in zip(cache.layers, part.layers, strict=True):
                if not whole.is_initialized:
                    shapes = (piece.keys[:1], piece.values[:1])
                    whole.lazy_initialization(*(t.expand(count, -1, -1, -1) for t in shapes))
                whole.keys[rows, :, :longest] = piece.keys
                whole.values[rows, :, :longest] = piece.values
    cache.truncate(longest)
    return torch.cat(last)


def select_rows(cache: KVCache, rows: torch.Tensor) -> None:
    """Keep only some sequences of a batched cache."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[rows], layer.values[rows]


def sample_top_p(logits: torch.Tensor, top_p: float, generator: torch.Generator) -> torch.Tensor:
    """One id per row from the smallest set of ids whose mass reaches top_p, of the best 512; logits [b, v] -> [b]."""
    top, ids = logits.float().topk(min(512, logits.shape[-1]), dim=-1)
    probs = top.softmax(-1)
    probs[probs.cumsum(-1) - probs > top_p] = 0.0
    drawn = torch.multinomial(probs, 1, generator=generator)
    return ids.gather(-1, drawn).squeeze(-1)


@torch.inference_mode()
def continue_batch(
    model: torch.nn.Module,
    prompts: list[list[int]],
    max_new_tokens: int,
    stop_ids: frozenset[int],
    layer_ids: tuple[int, ...] = (),
    top_p: float | None = None,
    seed: int = 0,
) -> list[Answer]:
    """Continue every prompt until a stop token or `max_new_tokens`; greedy, or sampled when top_p is given.

    model: a causal LM whose attention is `bastion.models.attention`. Answers come in the order
    of `prompts`. Memory is b * (longest prompt + max_new_tokens) positions of keys and values.
    """
    device, hidden = model.device, model.config.get_text_config().hidden_size
    count, longest = len(prompts), max(map(len, prompts))
    capacity = longest + max_new_tokens
    generator = torch.Generator(device=device).manual_seed(seed)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    pad = longest - lengths
    ids = torch.zeros(count, longest, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt, device=device)
    columns = torch.arange(capacity, device=device)
    hide = torch.zeros(count, 1, 1, capacity, device=device).masked_fill_(
        columns < pad[:, None, None, None], torch.finfo(torch.float32).min
    )
    cache = KVCache(model.config.get_text_config().num_hidden_layers, capacity)
    features = (
        torch.empty(count, capacity, len(layer_ids) * hidden, dtype=model.dtype, device=device) if layer_ids else None
    )
    written: list[list[int]] = [[] for _ in prompts]
    rows = torch.arange(count, device=device)  # which prompt each live row belongs to

    with features_of(model, layer_ids) as joined:
        logits = prefill_rows(model, ids, pad, cache, joined, features)
        for left in reversed(range(max_new_tokens)):
            chosen = logits.argmax(-1) if top_p is None else sample_top_p(logits, top_p, generator)
            for row, token in zip(rows.tolist(), chosen.tolist(), strict=True):
                if not (written[row] and written[row][-1] in stop_ids):
                    written[row].append(token)
            live = torch.tensor([written[row][-1] not in stop_ids for row in rows.tolist()], device=device)
            if not left or not live.any():
                break
            if live.float().mean() < 0.75:
                keep = live.nonzero().squeeze(-1)
                select_rows(cache, keep)
                rows, chosen, hide = rows[keep], chosen[keep], hide[keep]
            out = model(
                input_ids=chosen[:, None], attention_mask=hide[..., : cache.length + 1],
                position_ids=(cache.length - pad[rows])[:, None], cache=cache, use_cache=True,
            )
            if features is not None:
                features[rows, cache.length] = joined()[:, 0]
            cache.commit(1)
            logits = out.logits[:, -1]

    answers = []
    for row, (prompt, answer) in enumerate(zip(prompts, written, strict=True)):
        first = longest - len(prompt)
        kept = features[row, first : first + len(prompt) + len(answer) - 1].clone() if features is not None else None
        answers.append(Answer(answer, kept))
    return answers


@torch.inference_mode()
def features_of_texts(
    model: torch.nn.Module, sequences: list[list[int]], layer_ids: tuple[int, ...]
) -> list[torch.Tensor]:
    """Features [len(s) - 1, f] of finished texts, one batched pass (right-padded).

    A whole causal pass is what the library's own attention is fastest at; small batches that stay
    in cache beat large ones on a CPU.
    """
    longest = max(map(len, sequences)) - 1
    ids = torch.zeros(len(sequences), longest, dtype=torch.long, device=model.device)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence) - 1] = torch.tensor(sequence[:-1], device=model.device)
    with library_attention(model), features_of(model, layer_ids) as joined:
        model.get_decoder()(input_ids=ids, use_cache=False)
        features = joined()
    return [features[row, : len(s) - 1].clone() for row, s in enumerate(sequences)]


def batches_by_length(lengths: list[int], batch: int) -> Iterator[list[int]]:
    """Indices in batches of similar length, longest last."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for start in range(0, len(order), batch):
        yield order[start : start + batch]
