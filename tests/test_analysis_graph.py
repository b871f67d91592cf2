"""A step's tree as a graph: the tree, whole and unchanged, through GraphML and back."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from bastion.analysis.graph import tree_graph
from tests.synthetic_runs import make_step, text_of


@pytest.mark.parametrize("trace", [True, False])
def test_the_graph_is_the_tree(tmp_path, trace) -> None:
    step = make_step(nodes=24, accepted_depth=3, trace=trace)
    nx.write_graphml(tree_graph(step, lambda token: text_of([token])[0]), tmp_path / "tree.graphml")
    graph = nx.read_graphml(tmp_path / "tree.graphml", node_type=int)
    assert nx.is_arborescence(graph)
    assert len(graph) == step.nodes
    for node in range(step.nodes):
        data = graph.nodes[node]
        assert list(graph.predecessors(node)) == ([int(step.parents[node])] if node else [])
        assert nx.shortest_path_length(graph, 0, node) == data["depth"] == step.depths[node]
        assert data["token_id"] == step.token_ids[node]
        assert data["path_probability"] == pytest.approx(np.exp(step.path_log_probs[node]))
        assert data["accepted"] == (node in step.accepted)
        assert ("target_probability" in data) == (trace and node > 0)
    assert graph.graph["bonus_id"] == step.bonus
