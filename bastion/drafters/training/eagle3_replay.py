"""Held-out acceptance of an EAGLE-3 head: greedy decoding replayed from a known answer, through the session decoding uses.

A step hands over features of tokens before its root alone, so what the head may not know it is never given.
"""

from __future__ import annotations

from collections.abc import Iterable

from bastion.drafters.eagle3_drafter import Eagle3Drafter
from bastion.drafters.training.shards import Dialogue
from bastion.trees.eagle3_tree import LEVELS, TOP_K, grow_reranked

PATH_LEVELS = 7
"""Tokens of the single path."""


def replay(drafter: Eagle3Drafter, dialogue: Dialogue, nodes: int, max_new_tokens: int = 64) -> tuple[int, int]:
    """Tokens emitted by decode steps and their number, with trees of `nodes` beside the root (0: the single path).

    The first token of the answer is the prefill's.
    """
    nodes, levels, k = (nodes, min(LEVELS, nodes), min(TOP_K, nodes)) if nodes else (PATH_LEVELS, PATH_LEVELS, 1)
    ids = dialogue.ids[: dialogue.prompt_length + max_new_tokens].tolist()
    session = drafter.start(len(ids))
    at, read, steps = dialogue.prompt_length, 0, 0
    while at < len(ids) - 1:
        candidates = session.draft_tree(dialogue.features[None, read:at].to(drafter.target.device), ids[read + 1 : at + 1], levels, k)
        tree = grow_reranked(candidates, ids[at], nodes)
        children = {(int(p), int(t)): i for i, (p, t) in enumerate(zip(tree.parents, tree.token_ids, strict=True))}
        read, node = at, 0
        while at + 1 < len(ids) and (child := children.get((node, ids[at + 1]))) is not None:
            node, at = child, at + 1
        at, steps = at + 1, steps + 1
    return len(ids) - 1 - dialogue.prompt_length, steps


def acceptance(
    drafter: Eagle3Drafter, dialogues: Iterable[Dialogue], sizes: tuple[int, ...] = (0, 16), max_new_tokens: int = 64
) -> dict[int, float]:
    """tau for each tree size (0: the single path), over all decode steps of the dialogues."""
    tokens, steps = dict.fromkeys(sizes, 0), dict.fromkeys(sizes, 0)
    for dialogue in dialogues:
        if dialogue.answer_length < 2:
            continue
        for size in sizes:
            emitted, taken = replay(drafter, dialogue, size, max_new_tokens)
            tokens[size] += emitted
            steps[size] += taken
    return {size: tokens[size] / max(1, steps[size]) for size in sizes}
