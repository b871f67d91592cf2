"""The target: any Hugging Face causal language model, run over trees of tokens.

One forward appends n tokens behind the committed context. They may form a chain or a tree; the
mask covers only them, and the hidden features a drafter reads are caught on the way, by hooks, in
the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bastion.errors import UserError
from bastion.models.cache import KVCache, RowCache
from bastion.models.lean import lean_forward
from bastion.models.linear_kinds import QuickLinear
from bastion.models.windows import windows_of

if TYPE_CHECKING:
    from bastion.trees import DraftTree

PREFILL_CHUNK = 512
"""Prompt tokens of one forward: bounds the attention scores to chunk x context."""


@dataclass(frozen=True, slots=True)
class TargetOutput:
    logits: torch.Tensor
    """[rows, vocab] of the last `rows` tokens, in the model's dtype."""
    features: torch.Tensor | None
    """[1, n, layers * hidden] of all n tokens; None when no layer is watched."""
    choices: torch.Tensor | None = None
    """int32 [2, rows], `top_k.choices` of the logits, where they were worked out along the way."""


class Target:
    """`model`: an `AutoModelForCausalLM` in evaluation mode whose attention is ours."""

    padded = False
    """Whether a tree costs what its bucket costs (`bastion.latency.buckets`), because shapes are fixed."""

    def __init__(self, model, name: str):
        self.model = model
        self.name = name
        self.config = model.config.get_text_config()
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.layers: int = self.config.num_hidden_layers
        self.hidden_size: int = self.config.hidden_size
        self.embedding = model.get_input_embeddings()
        self.head = model.get_output_embeddings()
        self.vocab_size: int = self.embedding.weight.shape[0]
        limit = getattr(self.config, "max_position_embeddings", None)
        self.position_limit: int = int(limit) if limit else 1 << 30
        """Positions the model knows: prompt and answer together cannot be longer."""
        self._windows = windows_of(self.config, name)
        self._decoder = model.get_decoder()
        self._lean = lean_forward(model)
        self._caught: dict[int, torch.Tensor] = {}
        self._hooks: list = []
        self._watched: tuple[int, ...] = ()

    @property
    def lean(self) -> bool:
        """Whether our own forward runs, and not the library's."""
        return self._lean is not None

    def watch(self, layer_ids: Sequence[int]) -> None:
        """From now on return the outputs of these layers (counted from 0; -1: the embeddings) as features.

        The last layer's output is taken behind the final norm, as Hugging Face's `hidden_states`
        has it. UserError when the model keeps its layers elsewhere than most do.
        """
        for hook in self._hooks:
            hook.remove()
        layers, norm = getattr(self._decoder, "layers", None), getattr(self._decoder, "norm", None)
        if layer_ids and (layers is None or norm is None):
            raise UserError(f"{self.name} keeps its layers in a layout that no drafter can read; use the method ar.")
        self._watched = tuple(layer_ids)
        self._hooks = [] if self._lean else [
            self._giver(index, layers, norm).register_forward_hook(self._catcher(index)) for index in set(layer_ids)
        ]

    @contextmanager
    def watching(self, layer_ids: Sequence[int] | None) -> Iterator[None]:
        """Watch these layers for a while, as another drafter than the pair's own needs them; None: those it watches."""
        before = self._watched
        if layer_ids is None or tuple(layer_ids) == before:
            yield
            return
        self.watch(layer_ids)
        try:
            yield
        finally:
            self.watch(before)

    def _giver(self, index: int, layers: Sequence[torch.nn.Module], norm: torch.nn.Module) -> torch.nn.Module:
        """The module whose output is the feature of layer `index`."""
        if index < 0:
            return self.embedding
        return layers[index] if index < self.layers - 1 else norm

    def _catcher(self, index: int):
        def catch(module, inputs, output):
            self._caught[index] = output[0] if isinstance(output, tuple) else output

        return catch

    def new_cache(self, capacity: int) -> KVCache | RowCache:
        return self._lean.new_cache(capacity) if self._lean else KVCache(self.layers, capacity)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: KVCache | RowCache,
        rows: int | None = None,
        drafted: torch.Tensor | None = None,
    ) -> TargetOutput:
        """One pass over n tokens behind `cache.length` committed ones; the cache is not advanced.

        token_ids, positions: int64 [n]. mask: float32 [n, n], added to the attention scores of
        each token towards the n tokens (the whole context is visible, but for what has slid out of
        a layer's window); None when all see all, which is right for n = 1 only. rows: logits of the last so many tokens; None for all n, 0
        for none. drafted: positions int64 [d] of the last d cached rows, where those are nodes of
        a tree and not of the text; mask is then [n, d + n] and says what of them is seen.
        """
        if self._lean:
            return self._forward_lean(token_ids, positions, mask, cache, rows, drafted)
        self._caught.clear()
        inputs = {
            "input_ids": token_ids[None],
            "position_ids": positions[None],
            "attention_mask": self._windows.masks(mask, positions, cache.length, drafted),
            "cache": cache,
            "use_cache": True,
        }
        if rows == 0:
            self._decoder(**inputs)
            logits = self.embedding.weight.new_empty(0, self.vocab_size)
        else:
            logits = self.model(**inputs, logits_to_keep=rows or 0).logits[0]
        features = None
        if self._watched:
            features = torch.cat([self._caught[index] for index in self._watched], dim=-1)
        self._caught.clear()
        return TargetOutput(logits, features)

    def _forward_lean(self, token_ids, positions, mask, cache: RowCache, rows: int | None, drafted) -> TargetOutput:
        masks = self._windows.by_layer(mask, positions, cache.length, self.config, drafted)
        hidden, seen = self._lean(token_ids, positions, masks, cache, self._watched)
        last = hidden if rows is None else hidden[len(hidden) - rows :]
        parts = [self.head(part) for part in last.split(self._lean.rows_at_once)] if len(last) else []
        logits = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else hidden.new_empty(0, self.vocab_size)
        features = torch.cat([seen[index] for index in self._watched], dim=-1)[None] if self._watched else None
        return TargetOutput(logits, features)

    def prefill(
        self, token_ids: Sequence[int], cache: KVCache | RowCache, on_read: Callable[[int], None] | None = None
    ) -> TargetOutput:
        """Read a prompt into an empty cache, in chunks, and commit it.

        Returns logits [1, vocab] of the last token and features of all prompt tokens. `on_read`
        hears, before each chunk, how many tokens have been read; what it raises ends the reading.
        """
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        features = []
        for start in range(0, len(ids), PREFILL_CHUNK):
            if on_read is not None:
                on_read(start)
            chunk = ids[start : start + PREFILL_CHUNK]
            last = start + len(chunk) == len(ids)
            positions = torch.arange(start, start + len(chunk), device=self.device)
            output = self.forward(chunk, positions, causal_mask(len(chunk), self.device), cache, rows=int(last))
            cache.commit(len(chunk))
            features.append(output.features)
        watched = torch.cat(features, dim=1) if self._watched else None
        return TargetOutput(output.logits, watched)

    def tree_inputs(self, token_ids: np.ndarray, depths: np.ndarray, allowed: np.ndarray, context: int):
        """Token ids, positions and mask of `forward` for n tree nodes whose root stands at `context`.

        token_ids, depths int64 [n]; allowed bool [n, n], row i true where node i may look.
        """
        mask = None
        if len(token_ids) > 1:
            mask = torch.where(
                torch.from_numpy(allowed).to(self.device, non_blocking=True), 0.0, torch.finfo(torch.float32).min
            )
        return (
            torch.from_numpy(token_ids).to(self.device, non_blocking=True),
            torch.from_numpy(depths + context).to(self.device, non_blocking=True),
            mask,
        )

    def lay_out(self, tree: DraftTree, context: int) -> Any:
        """What `verify` takes, sent to the device, for a tree whose root stands at `context`."""
        return self.tree_inputs(tree.token_ids, tree.depths, tree.ancestor_mask(), context)

    def verify(self, laid_out: Any, cache: KVCache) -> TargetOutput:
        """`forward` over a tree that was laid out behind the committed tokens."""
        return self.forward(*laid_out, cache)

    def settle(self) -> None:
        """Once a step's clock has stopped: work that makes later steps quicker. Here there is none."""

    def head_in(self, dtype: torch.dtype) -> torch.nn.Module:
        """The head in another number type, for a drafter that runs in it: a copy, unless it is the target's own."""
        if dtype == self.dtype:
            return self.head
        weight = self.head.weights() if isinstance(self.head, QuickLinear) else self.head.weight
        copy = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=self.head.bias is not None, device="meta")
        copy.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
        if self.head.bias is not None:
            copy.bias = torch.nn.Parameter(self.head.bias.to(dtype), requires_grad=False)
        return copy

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[..., hidden] rows of the embedding of int64 [...] ids, as drafters take them: without the scaling
        that some models (Gemma) put on top."""
        return torch.nn.functional.embedding(token_ids, self.embedding.weight)


def causal_mask(n: int, device: torch.device) -> torch.Tensor | None:
    """float32 [n, n], 0 on and below the diagonal and the lowest number above; None for n = 1."""
    if n == 1:
        return None
    return torch.full((n, n), torch.finfo(torch.float32).min, device=device).triu_(1)
