"""The drafter judged at every position of known answers.

Its session makes what its network is given and makes proposals of what its head returns, as in decoding;
only the network's arithmetic in between is done for all anchors of an answer in one pass, as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bastion.decoding.doctor.drafting import Change, Given, Where
from bastion.decoding.doctor.material import Answer
from bastion.drafters.dflash_drafter import DFlashDrafter, DFlashSession
from bastion.errors import UserError
from bastion.models.registry import Drafter
from bastion.trees import DraftMarginals, FixedBudget, grow_best_first

CANDIDATES = 256
"""Tokens kept per depth: as many as the largest tree can take."""


class _Caught(Exception):
    """Ends a session's draft where its network would begin."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """ids int64, log_probs float32 [anchors, depth, k] behind each anchor of one answer. own: the same tokens' ids in the
    drafter's vocabulary, before its map to the target's; `ids` themselves where it has none of its own."""

    ids: np.ndarray
    log_probs: np.ndarray
    own: np.ndarray


@torch.inference_mode()
def propose(drafter: Drafter, answer: Answer, change: Change) -> Proposals | None:
    """What the drafter proposes at every anchor under `change`; None where a `given` changes nothing at all."""
    drafter = drafter if change.drafter is None else change.drafter()
    features = answer.context(change.layer_ids or drafter.feature_layer_ids)
    anchors = answer.anchors(drafter.depth)
    given = [caught(drafter, features[:, :place], answer.ids[place]) for place in anchors]
    if change.given is not None:
        changed = [change.given(drafter, one, Where(place, answer.ids[place], features[0, place:place + 1]))
                   for one, place in zip(given, anchors, strict=True)]
        if all(new is old for new, old in zip(changed, given, strict=True)):
            return None
        given = changed
    hidden = network(drafter.model, given)
    logits = drafter.head(torch.cat(hidden)).split([len(rows) for rows in hidden])
    with _temperatures(drafter, change.temperatures):
        def drawn() -> list[np.ndarray]:
            found = [_finish(drafter, features[:, :place], answer.ids[place], *outcome)
                     for place, outcome in zip(anchors, zip(hidden, logits, strict=True), strict=True)]
            return [np.stack(part) for part in zip(*found, strict=True)]

        ids, log_probs = drawn()
        with _unmapped(drafter):
            own = ids if drafter.target_ids is None else drawn()[0]
    return Proposals(ids if change.ids is None else change.ids(ids, own), log_probs, own)


def session(drafter: Drafter, capacity: int) -> Any:
    """The drafter's own, but the plain one where that of fixed shapes would stand in for it: both make the same of the same."""
    return DFlashSession(drafter, capacity) if type(drafter).start is DFlashDrafter.start else drafter.start(capacity)


def caught(drafter: Drafter, features: torch.Tensor, root: int) -> Given:
    """What the drafter's session gives its network behind `root`; features [1, c, layers * h]."""
    def catch(block, context, positions, cache=None, attention_mask=None):
        c, n = context.shape[1], block.shape[1]
        mask = None if attention_mask is None else attention_mask.expand(1, 1, n, c + n)[0, 0]
        found.append(Given(block[0], context[0], positions[0, :c], positions[0, c:], mask))
        raise _Caught

    found: list[Given] = []
    with _forward(drafter.model, catch):
        try:
            session(drafter, features.shape[1] + 1).draft(features, root, 1)
        except _Caught:
            pass
    if not found:
        raise UserError("The drafter's session does not hand its network what a DFlash session does, so nothing can be changed in it.")
    return found[0]


def _finish(drafter: Drafter, features: torch.Tensor, root: int, hidden: torch.Tensor, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The session's own way from the network's output [B, h] to proposals; logits [B, vocab] are its head's."""
    def head(rows: torch.Tensor) -> torch.Tensor:
        first = (rows.data_ptr() - hidden.data_ptr()) // (hidden.shape[-1] * hidden.element_size())
        return logits[first:first + len(rows)]

    with _forward(drafter.model, lambda *_args, **_options: hidden[None]), _forward(drafter.head, head):
        return session(drafter, features.shape[1] + 1).draft(features, root, CANDIDATES)


def network(model: Any, given: list[Given]) -> list[torch.Tensor]:
    """The network's output [B, h] for each of `given`."""
    if _own_rules(model) or len({len(one.block) for one in given}) > 1:
        return [_alone(model, one) for one in given]
    longest = max(given, key=lambda one: len(one.context))
    rows = len(longest.context)
    context, places = [longest.context], [longest.context_positions]
    spans, end = [], rows
    for one in given:  # rows that no other anchor reads stand behind the shared ones
        extra = len(one.context) - _kept(one, longest)
        context.append(one.context[len(one.context) - extra:])
        places.append(one.context_positions[len(one.context) - extra:])
        spans.append((end, end + extra))
        end += extra
    size = len(given[0].block)
    mask = torch.zeros(len(given) * size, end + len(given) * size, dtype=torch.bool, device=given[0].block.device)
    for number, (one, span) in enumerate(zip(given, spans, strict=True)):
        kept = len(one.context) - (span[1] - span[0])
        sees = torch.ones(size, len(one.context) + size, dtype=torch.bool) if one.mask is None else one.mask
        block = slice(number * size, (number + 1) * size)
        mask[block, :kept] = sees[:, :kept]
        mask[block, span[0]:span[1]] = sees[:, kept:len(one.context)]
        mask[block, end + number * size:end + (number + 1) * size] = sees[:, len(one.context):]
    hidden = model(torch.cat([one.block for one in given])[None], torch.cat(context)[None],
                   torch.cat([*places, *(one.positions for one in given)])[None], attention_mask=mask[None, None])
    return list(hidden[0].split(size))


def _alone(model: Any, one: Given) -> torch.Tensor:
    mask = None if one.mask is None else one.mask[None, None]
    positions = torch.cat((one.context_positions, one.positions))[None]
    return model(one.block[None], one.context[None], positions, attention_mask=mask)[0]


def _own_rules(model: Any) -> bool:
    """Whether some layer of the network hides positions by a rule of its own, which a mask would override."""
    return any(model.config.attends(layer) != (False, None) for layer in range(model.config.num_hidden_layers))


def _kept(one: Given, longest: Given) -> int:
    """Rows at the start of `one` that are those of `longest`."""
    n = len(one.context)
    if one.context.data_ptr() == longest.context.data_ptr() and one.context_positions.equal(longest.context_positions[:n]):
        return n   # a stretch of the same rows
    same = (one.context == longest.context[:n]).all(dim=-1) & (one.context_positions == longest.context_positions[:n])
    return int(same.long().cumprod(0).sum())


def lengths(proposals: Proposals, answer: Answer, nodes: int) -> np.ndarray:
    """int64 [anchors]: tokens a step would emit at each anchor, by a best-first tree of `nodes` beside the root."""
    depth = proposals.ids.shape[1]
    emitted = []
    for row, place in enumerate(answer.anchors(depth)):
        tree = grow_best_first(DraftMarginals(proposals.ids[row], proposals.log_probs[row]), answer.ids[place], FixedBudget(nodes + 1))
        children = {(int(p), int(t)): i for i, (p, t) in enumerate(zip(tree.parents, tree.token_ids, strict=True))}
        node, count = 0, 1
        while count <= depth and (node := children.get((node, answer.ids[place + count]))) is not None:
            count += 1
        emitted.append(count)
    return np.array(emitted, dtype=np.int64)


def log_likelihoods(proposals: Proposals, answer: Answer) -> np.ndarray:
    """float64 [anchors]: mean log-probability, over the depths, that the drafter gives the target's own tokens.

    A token that is not among the candidates counts as the least of them.
    """
    depth = proposals.ids.shape[1]
    found = []
    for row, place in enumerate(answer.anchors(depth)):
        hit = proposals.ids[row] == np.array(answer.ids[place + 1:place + 1 + depth])[:, None]
        listed = np.where(hit, proposals.log_probs[row], -np.inf).max(axis=1)
        found.append(np.maximum(listed, proposals.log_probs[row, :, -1]).mean())
    return np.array(found, dtype=np.float64)


@contextmanager
def _forward(module: torch.nn.Module, forward: Callable) -> Iterator[None]:
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


@contextmanager
def _temperatures(drafter: Any, values: tuple[float, ...] | None) -> Iterator[None]:
    before = drafter.temperatures
    if values is not None:
        drafter.temperatures = torch.tensor(values, dtype=before.dtype, device=before.device)[:, None]
    try:
        yield
    finally:
        drafter.temperatures = before


@contextmanager
def _unmapped(drafter: Any) -> Iterator[None]:
    """A drafter with a vocabulary of its own proposes in that."""
    before = drafter.target_ids
    if before is not None:
        drafter.target_ids = np.arange(len(before))
    try:
        yield
    finally:
        drafter.target_ids = before
