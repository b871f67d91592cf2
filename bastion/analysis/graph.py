"""A step's tree as a networkx graph: for other tools, through GraphML."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np

from bastion.step import StepRecord
from bastion.token_text import show_token


def tree_graph(step: StepRecord, text_of: Callable[[int], str]) -> nx.DiGraph:
    """The verified tree, one graph node per tree node, edges from parent to child.

    Attributes: `token` (as shown), `token_id`, `depth`, `path_probability`, `accepted`, and
    `target_probability` where the step was traced. The bonus token is the graph's `bonus`.
    """
    graph = nx.DiGraph(step=step.index, bonus=show_token(text_of(step.bonus)), bonus_id=int(step.bonus))
    accepted = set(step.accepted.tolist())
    for node in range(step.nodes):
        graph.add_node(
            node,
            token=show_token(text_of(int(step.token_ids[node]))),
            token_id=int(step.token_ids[node]),
            depth=int(step.depths[node]),
            path_probability=float(np.exp(step.path_log_probs[node])),
            accepted=node in accepted,
        )
        if step.trace is not None and node > 0:
            graph.nodes[node]["target_probability"] = float(np.exp(step.trace.target_log_probs[node]))
        if node > 0:
            graph.add_edge(int(step.parents[node]), node)
    return graph
