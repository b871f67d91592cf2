"""The tree layout: nothing overlaps, nothing crosses, parents sit midway."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bastion.figures.tidy import tidy_layout


@st.composite
def trees(draw):
    """parents (-1 first, parents before children) and an extent for each node."""
    n = draw(st.integers(1, 60))
    parents = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, n)]
    extents = draw(st.lists(st.floats(0.25, 3), min_size=n, max_size=n))
    return parents, extents


def depths_of(parents):
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return depths


def test_a_small_tree_by_hand():
    #      0 -> 1 -> 3, 4 ; 0 -> 2 -> 5
    y = tidy_layout([-1, 0, 0, 1, 1, 2])
    assert y.tolist() == [1.25, 0.5, 2.0, 0.0, 1.0, 2.0]


def test_a_chain_is_straight_and_an_empty_tree_is_empty():
    assert tidy_layout([-1, 0, 1, 2, 3]).tolist() == [0.0] * 5
    assert tidy_layout([]).shape == (0,)


@given(trees())
def test_neighbours_of_a_column_keep_their_distance(tree):
    parents, extents = tree
    y = tidy_layout(parents, extents)
    depths = depths_of(parents)
    for depth in set(depths):
        column = sorted((v for v in range(len(parents)) if depths[v] == depth), key=lambda v: y[v])
        for above, below in pairwise(column):
            assert y[below] - y[above] >= (extents[above] + extents[below]) / 2 - 1e-9
    assert y.min() == 0


@given(trees())
def test_no_two_edges_cross(tree):
    """Edges join neighbouring columns, so they cross exactly when their two ends are in opposite orders."""
    parents, extents = tree
    y = tidy_layout(parents, extents)
    depths = depths_of(parents)
    for a in range(1, len(parents)):
        for b in range(1, a):
            if depths[a] == depths[b] and parents[a] != parents[b]:
                assert (y[a] - y[b]) * (y[parents[a]] - y[parents[b]]) > 0


@given(trees())
def test_parents_sit_midway_and_children_keep_their_order(tree):
    parents, extents = tree
    y = tidy_layout(parents, extents)
    for node in range(len(parents)):
        children = [v for v in range(len(parents)) if parents[v] == node]
        if children:
            assert np.isclose(y[node], (y[children[0]] + y[children[-1]]) / 2)
            assert all(y[a] < y[b] for a, b in pairwise(children))
