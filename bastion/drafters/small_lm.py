"""A small language model beside its target: it reads the text as the target does and searches a tree level by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from bastion.models.cache import KVCache
from bastion.models.target import PREFILL_CHUNK, Target, causal_mask
from bastion.models.tokenizer import Tokenizer
from bastion.models.top_k import top_k_log_probs
from bastion.trees.level_search import LevelCandidates, LevelSearch, nothing_found, search_levels

LEVELS = 8
"""How deep a tree may be where its method does not say: one pass of the small model a level."""


class SmallLmDrafter:
    """`model` wraps the small model as a target is wrapped: the cache, the mask of a tree and the windows are the same.

    It runs in its own number type: what it proposes decides how fast the answer comes and never which.
    `check_tokenizer` raises UserError for the tokenizer of a target that it cannot draft for.
    `vocab`: ids that both models know; what one of them has beyond is padding.
    """

    kind = "small-lm"
    gives = "levels"
    depth = LEVELS
    feature_layer_ids: tuple[int, ...] = ()

    def __init__(self, model: Target, target: Target, check_tokenizer: Callable[[Tokenizer | None], None] | None = None):
        self.model, self.target, self.check_tokenizer = model, target, check_tokenizer
        self.dtype = model.dtype
        self.vocab = min(model.vocab_size, target.vocab_size)

    def start(self, capacity: int) -> SmallLmSession:
        return SmallLmSession(self, capacity)

    def known(self, token_ids: Sequence[int] | np.ndarray) -> torch.Tensor:
        """int64 [n] on the device; ids that the small model lacks, padding of the target's embedding, become its first."""
        ids = torch.as_tensor(token_ids, dtype=torch.int64, device=self.model.device)
        return ids if self.model.vocab_size >= self.target.vocab_size else ids.where(ids < self.model.vocab_size, 0)

    def propose(self, logits: torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids int64 and log-probs float32 [n, k] of logits [n, vocab of the small model]."""
        log_probs, ids = top_k_log_probs(logits[:, : self.vocab], k)
        return ids.cpu().numpy(), log_probs.cpu().numpy()


class SmallLmSession:
    """One sequence. The cache holds the text up to the root and forgets drafted nodes after every step: the pass over
    the new root has to be made anyway, and the few accepted tokens before it cost next to nothing in it."""

    def __init__(self, drafter: SmallLmDrafter, capacity: int):
        self.drafter, self.capacity = drafter, capacity
        self.cache: KVCache | None = None
        self._unread: list[int] = []

    def begin(self, token: int) -> None:
        """The first token of the prompt, which follows no other."""
        self._unread = [token]

    @torch.inference_mode()
    def draft_tree(self, features: object, following: Sequence[int], search: LevelSearch) -> LevelCandidates:
        """Read the tokens that are new since the last call, the last of which is the root, and search behind it.

        features are the target's and nothing here. following: the token behind each new context token. Nothing is
        drafted past the positions that the small model knows.
        """
        model = self.drafter.model
        if self.cache is None:
            self.cache = model.new_cache(self.capacity + search.rows)
        self._unread += following
        if self.cache.length + len(self._unread) + search.levels > model.position_limit:
            return nothing_found()
        ids, log_probs = self.drafter.propose(self._read(), search.tokens)
        context = self.cache.length
        try:
            return search_levels(ids[0], log_probs[0], _Branches(self.drafter, self.cache, search.tokens), search)
        finally:
            self.cache.truncate(context)

    def _read(self) -> torch.Tensor:
        """Text not read yet into the cache, in chunks; logits [1, vocab] behind its last token."""
        model, cache = self.drafter.model, self.cache
        ids, self._unread = self.drafter.known(self._unread), []
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = ids[start: start + PREFILL_CHUNK]
            positions = torch.arange(cache.length, cache.length + len(chunk), device=model.device)
            last = start + len(chunk) == len(ids)
            output = model.forward(chunk, positions, causal_mask(len(chunk), model.device), cache, rows=int(last))
            cache.commit(len(chunk))
        return output.logits


class _Branches:
    """`level_search.Behind` over one tree: every level is one pass behind the rows of those above it, which stay as scratch."""

    def __init__(self, drafter: SmallLmDrafter, cache: KVCache, tokens: int):
        self.drafter, self.cache, self.tokens = drafter, cache, tokens
        self.root = cache.length - 1
        self.row_of: dict[int, int] = {}
        """Row, counted behind the root, of each candidate looked behind."""
        self.visible = np.zeros((0, 0), dtype=bool)  # what each row sees of the rows
        self.positions = torch.zeros(0, dtype=torch.int64, device=drafter.model.device)

    def __call__(self, candidates: np.ndarray, token_ids: np.ndarray, parents: np.ndarray, depths: np.ndarray):
        model, cache = self.drafter.model, self.cache
        before, count = len(self.visible), len(token_ids)
        visible = np.zeros((before + count, before + count), dtype=bool)
        visible[:before, :before] = self.visible
        for row, parent in enumerate(parents.tolist(), start=before):
            if parent >= 0:
                visible[row] = visible[self.row_of[parent]]
            visible[row, row] = True
        self.visible = visible
        self.row_of.update(zip(candidates.tolist(), range(before, before + count)))
        positions = torch.from_numpy(depths + self.root).to(model.device)
        mask = torch.where(torch.from_numpy(visible[before:]).to(model.device), 0.0, torch.finfo(torch.float32).min)
        output = model.forward(self.drafter.known(token_ids), positions, mask, cache, drafted=self.positions)
        cache.commit(count)
        self.positions = torch.cat((self.positions, positions))
        return self.drafter.propose(output.logits, self.tokens)
