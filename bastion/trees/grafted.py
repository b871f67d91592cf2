"""Best-first growth over two sources at once: a drafter's marginals, and continuations found by lookup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from math import inf, log

import numpy as np

from bastion.step import GrowthLog
from bastion.trees.best_first import PAST_THE_STOP, sides_of
from bastion.trees.budgets import Budget, StopRule
from bastion.trees.draft_tree import DraftTree
from bastion.trees.marginals import DraftMarginals
from bastion.trees.stopping import take_while_worth

LEAST = 1e-9
"""Share of a node's probability that lookup never takes from the drafter."""


@dataclass(eq=False)
class Graft:
    """Continuations as a trie; node 0 is the root.

    children[i]: {token: (node, probability of the token given node i)}, which add up to 1 at most. left[i]: the
    probability that none of them comes; unclaimed[i]: what the drafter gives to all other tokens there. Without
    lookup's candidates the drafter's tokens share all of the probability, with them what they leave: each
    gets left[i] / unclaimed[i] of what the drafter gives it.
    """

    children: list[dict[int, tuple[int, float]]] = field(default_factory=lambda: [{}])
    left: list[float] = field(default_factory=lambda: [1.0])
    unclaimed: list[float] = field(default_factory=lambda: [1.0])

    def put(self, node: int, token: int, rate: float, drafted: float = 0.0) -> int:
        """Lay a token below a node and return its node. rate: its probability given that none of those laid there
        before it comes; drafted: the drafter's probability of it. One that stands there already is left as it is."""
        below = self.children[node]
        if token not in below:
            below[token] = len(self.children), self.left[node] * rate
            self.left[node] = max(self.left[node] * (1.0 - rate), LEAST)
            self.unclaimed[node] = max(self.unclaimed[node] - drafted, LEAST)
            self.children.append({})
            self.left.append(1.0)
            self.unclaimed.append(1.0)
        return below[token][0]

    def add(self, tokens: list[int], rates: list[float]) -> None:
        """Lay a continuation of which the drafter knows nothing."""
        node = 0
        for token, rate in zip(tokens, rates, strict=True):
            node = self.put(node, token, rate)


def grow_grafted(marginals: DraftMarginals, graft: Graft, root_token: int, budget: Budget, deepest: int,
                 trace: bool = False) -> DraftTree:
    """Add nodes by path probability from both sources until the budget stops.

    Below a node that lookup knows continuations of, the next token is one of those with their probabilities,
    else one of the drafter's others, which share what is left in proportion to their marginals: one
    distribution, of which best-first growth takes the greatest paths as it does without lookup. deepest: no node lies deeper than this. Raises UserError
    like the budget does.
    """
    pops = _Growth(marginals, graft, deepest).pops()
    popped: list[_Pop] = []

    def first(count: int) -> list[_Pop]:
        popped.extend(islice(pops, max(0, count - len(popped))))
        return popped[:count]

    rule = budget.stop_rule()
    stop = take_while_worth(lambda count: _costs(first(count)), budget, rule)
    nodes = budget.rounded(stop.taken + 1)

    def log_of() -> GrowthLog:
        refused = rule is not None and stop.reason == "price"
        logged = max(stop.looked_at, stop.taken + refused + PAST_THE_STOP) if trace else stop.looked_at
        return _growth_log(first(logged), nodes - 1, stop.taken, rule)

    bought = first(nodes - 1)
    return DraftTree(
        token_ids=np.array([root_token, *(pop.token for pop in bought)], dtype=np.int64),
        parents=np.array([-1, *(pop.parent for pop in bought)], dtype=np.int64),
        depths=np.array([0, *(pop.depth for pop in bought)], dtype=np.int64),
        path_log_probs=np.array([0.0, *(-pop.cost for pop in bought)]),
        stop_reason=stop.reason,
        grow_log=log_of,
    )


@dataclass(slots=True)
class _Pop:
    """A path that may be taken next. number: its place among those taken, 0 until then."""

    cost: float              # -path log prob
    token: int
    parent: int              # number of the node above, 0 for the root
    depth: int
    rank: int                # among the drafter's proposals at its depth; -1 when it is not one of them
    graft: int | None        # its node in the trie
    above: _Pop | None
    sibling: int | None      # next rank to try beside it; None for a path that lookup made
    number: int = 0


class _Growth:
    """The candidates, most probable first. A node's drafted children come in one by one, each when the one
    before was taken; its looked-up children, a handful, come in at once."""

    def __init__(self, marginals: DraftMarginals, graft: Graft, deepest: int) -> None:
        self.ids = marginals.token_ids
        self.costs = -marginals.log_probs.astype(np.float64)
        self.graft, self.deepest = graft, deepest
        self.heap: list[tuple[float, int, _Pop]] = []
        self.created = self.taken = 0
        self.rows: dict[int, tuple[list[int], list[float]]] = {}
        self._children(None, 0.0, 0, 0)

    def pops(self) -> Iterator[_Pop]:
        """All paths, most probable first. One counts as taken when the next is asked for: what lies below it
        and beside it may come then."""
        while self.heap:
            pop = heappop(self.heap)[2]
            yield pop
            self.taken += 1
            pop.number = self.taken
            self._children(pop, pop.cost, pop.depth, pop.graft)
            if pop.sibling is not None:
                self._drafted(pop.above, pop.sibling)

    def _children(self, pop: _Pop | None, cost: float, depth: int, graft: int | None) -> None:
        if depth >= self.deepest:
            return
        self._drafted(pop, 0)
        if graft is not None:
            ids = self._row(depth)[0] if depth < len(self.ids) else []
            for token, (node, probability) in self.graft.children[graft].items():
                if probability > 0:
                    rank = ids.index(token) if token in ids else -1
                    self._push(_Pop(cost - log(probability), token, pop.number if pop else 0, depth + 1, rank, node, pop, None))

    def _drafted(self, above: _Pop | None, rank: int) -> None:
        """The drafter's proposal of this rank below `above`, or the next that lookup does not have."""
        depth = above.depth if above else 0
        graft = above.graft if above else 0
        if depth >= min(len(self.ids), self.deepest):
            return
        ids, costs = self._row(depth)
        known = self.graft.children[graft] if graft is not None else {}
        while rank < len(ids) and ids[rank] in known:
            rank += 1
        if rank == len(ids) or costs[rank] == inf:
            return
        cost = (above.cost if above else 0.0) + costs[rank]
        if known:   # no path is more probable than the one it goes on from, whatever rounding says
            cost = max(cost + log(self.graft.unclaimed[graft] / self.graft.left[graft]), above.cost if above else 0.0)
        self._push(_Pop(cost, ids[rank], above.number if above else 0, depth + 1, rank, None, above, rank + 1))

    def _push(self, pop: _Pop) -> None:
        self.created += 1
        heappush(self.heap, (pop.cost, self.created, pop))

    def _row(self, depth: int) -> tuple[list[int], list[float]]:
        if depth not in self.rows:
            self.rows[depth] = self.ids[depth].tolist(), self.costs[depth].tolist()
        return self.rows[depth]


def _costs(popped: list[_Pop]) -> np.ndarray:
    return np.array([pop.cost for pop in popped], dtype=np.float64)


def _growth_log(popped: list[_Pop], bought: int, passed: int, rule: StopRule | None) -> GrowthLog:
    costs = _costs(popped)
    gains, prices = sides_of(rule, costs)
    numbers = np.arange(len(popped))
    return GrowthLog(
        token_ids=np.array([pop.token for pop in popped], dtype=np.int64),
        parents=np.array([pop.parent for pop in popped], dtype=np.int64),
        depths=np.array([pop.depth for pop in popped], dtype=np.int64),
        ranks=np.array([pop.rank for pop in popped], dtype=np.int64),
        path_log_probs=0.0 - costs, gains=gains, prices=prices,
        bought=numbers < bought, dropped=(numbers >= bought) & (numbers < passed),
    )
