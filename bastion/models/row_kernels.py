"""Compiled loops of the lean forward: what happens to a token between two matmuls.

A row is reckoned without regard to the rows beside it: the same operations in the same order whether a
token comes alone or in a tree, on every processor. Each runs on one thread and takes some microseconds a
layer, where plain operators take a hundred, most of it spent between them.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bastion.models.row_numbers import exponential, sigmoid, stored, widened

LANES = 16
"""Keys of one vector."""
BLOCK = 256
"""Keys whose scores are worked out together, and that lie together: [d, BLOCK] of one head fit a near cache, and what moves
when a path is kept lies in one or two of them, however long the context is."""
_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})
_in_order = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})


@_compiled
def norm_rows(x, weight, share, eps, out):
    """out = x / rms(x) * weight of each row [n, width], rounded once. share: 1 / width, in the type of eps."""
    n, width = x.shape
    for row in range(n):
        total = widened(x[row, 0]) * 0
        for i in range(width):
            number = widened(x[row, i])
            total += number * number
        scale = np.reciprocal(np.sqrt(total * share + eps))
        for i in range(width):
            out[row, i] = stored(widened(x[row, i]) * scale * widened(weight[i]), out)


@_compiled
def gate_rows(both, out):
    """out [n, f] = silu(gate) * up of each row, both [n, 2f] being gate and up side by side; rounded once."""
    n, width = out.shape
    for row in range(n):
        gates, ups, into = both[row][:width], both[row][width:], out[row]
        for i in range(width):
            gate = widened(gates[i])
            into[i] = stored(gate * widened(ups[i]) * sigmoid(gate), into)


@_compiled
def _normed_head(x, first, weight, share, eps, into):
    """into [d] = x[first : first + d], normed where there is a weight."""
    dim = len(into)
    for i in range(dim):
        into[i] = widened(x[first + i])
    if len(weight):
        total = into[0] * 0
        for i in range(dim):
            total += into[i] * into[i]
        scale = np.reciprocal(np.sqrt(total * share + eps))
        for i in range(dim):
            into[i] = into[i] * scale * widened(weight[i])


@_in_order
def _combine_two(p, q, rows, width, left, right):
    """left [w] = sum over i of p[i] * rows[i * width :][:w], and right with q, each added up in the order of i.

    Two sums share what is loaded. Places are unsigned, which spares the question whether they count from the end, and
    with it keeps the loops in vectors.
    """
    left[:] = 0
    right[:] = 0
    step, length = np.uintp(width), np.uintp(len(left))
    whole = len(p) - len(p) % 4
    for i in range(0, whole, 4):
        p0, p1, p2, p3 = p[i], p[i + 1], p[i + 2], p[i + 3]
        q0, q1, q2, q3 = q[i], q[i + 1], q[i + 2], q[i + 3]
        at0 = np.uintp(i) * step
        at1 = at0 + step
        at2 = at1 + step
        at3 = at2 + step
        for j in range(length):
            r0, r1, r2, r3 = rows[at0 + j], rows[at1 + j], rows[at2 + j], rows[at3 + j]
            a, b = left[j] + p0 * r0, right[j] + q0 * r0
            a, b = a + p1 * r1, b + q1 * r1
            a, b = a + p2 * r2, b + q2 * r2
            left[j], right[j] = a + p3 * r3, b + q3 * r3
    for i in range(whole, len(p)):
        at0 = np.uintp(i) * step
        for j in range(length):
            left[j] = left[j] + p[i] * rows[at0 + j]
            right[j] = right[j] + q[i] * rows[at0 + j]


@_in_order
def _scores(queries, keys, first, end, scores):
    """scores [m, first:end] = queries [m, d] times keys [blocks, d, BLOCK], summed over d in order; m is even.

    `first` begins a block, `end` is a multiple of LANES. A block of keys stays in a near cache for all queries.
    """
    count, dim = queries.shape
    for start in range(first, end, BLOCK):
        stop = min(start + BLOCK, end)
        block = keys[start // BLOCK].reshape(dim * BLOCK)
        for m in range(0, count, 2):
            _combine_two(queries[m], queries[m + 1], block, BLOCK, scores[m][start:stop], scores[m + 1][start:stop])


@_compiled
def _softmax(scores, count, least):
    """scores[:count] become weights, of which the sum is returned."""
    best = scores[0]
    for j in range(1, count):
        best = max(best, scores[j])
    for j in range(count):
        scores[j] = exponential(max(scores[j] - best, least))
    total = scores[0] * 0
    for j in range(count):
        total += scores[j]
    return total


@_in_order
def _mix_context(weights, context, values, mixed):
    """mixed [m, d] = weights [m, :context] times values [:context, d], summed in order; m is even."""
    count, dim = mixed.shape
    rows = values.reshape(values.size)
    for m in range(0, count, 2):
        _combine_two(weights[m][:context], weights[m + 1][:context], rows, dim, mixed[m], mixed[m + 1])


@_in_order
def _mix_own(weights, rows, first, count, values, mixed):
    """mixed [d] += sum over j from first to count of weights[j] * values[rows[j - first]], in order."""
    dim = np.uintp(len(mixed))
    flat = values.reshape(values.size)
    for j in range(first, count):
        weight, at = weights[j], np.uintp(rows[j - first]) * dim
        for d in range(dim):
            mixed[d] = mixed[d] + weight * flat[at + d]


@_compiled
def attend_rows(qkv, query_norm, key_norm, share, eps, cos, sin, keys, values, length, context, seen, counts, least, out):
    """n new tokens write their keys and values behind `length` rows and attend to what each may see.

    qkv [n, (heads + 2 kv_heads) * d]; norms [d], or empty; cos, sin [n, d / 2]; keys [kv_heads, blocks, d, BLOCK],
    values [kv_heads, room, d]. Token i sees the first `context` rows, and those of seen[i, : counts[i]], ascending.
    least: the lowest exponent worth taking. out [n, heads * d].
    """
    n, half = cos.shape
    dim, key_heads = 2 * half, len(keys)
    heads = out.shape[1] // dim
    group = heads // key_heads
    end = length + n
    head = np.empty(dim, keys.dtype)
    for row in range(n):
        block, place = (length + row) // BLOCK, (length + row) % BLOCK
        for k in range(key_heads):
            _normed_head(qkv[row], (heads + k) * dim, key_norm, share, eps, head)
            for i in range(half):
                keys[k, block, i, place] = head[i] * cos[row, i] - head[half + i] * sin[row, i]
                keys[k, block, half + i, place] = head[half + i] * cos[row, i] + head[i] * sin[row, i]
            for i in range(dim):
                values[k, length + row, i] = widened(qkv[row, (heads + key_heads + k) * dim + i])
    first = 0 if context else seen[:, 0].min() // BLOCK * BLOCK
    scaling = np.reciprocal(np.sqrt(share * 0 + dim))
    count = n * group + n * group % 2
    queries, mixed = np.zeros((count, dim), keys.dtype), np.empty((count, dim), keys.dtype)
    scores = np.empty((count, end + LANES), keys.dtype)
    totals = np.empty(count, keys.dtype)
    for k in range(key_heads):
        for row in range(n):
            for g in range(group):
                _normed_head(qkv[row], (k * group + g) * dim, query_norm, share, eps, head)
                query = queries[row * group + g]
                for i in range(half):
                    query[i] = (head[i] * cos[row, i] - head[half + i] * sin[row, i]) * scaling
                    query[half + i] = (head[half + i] * cos[row, i] + head[i] * sin[row, i]) * scaling
        _scores(queries, keys[k], first, (end + LANES - 1) // LANES * LANES, scores)
        for row in range(n):
            for m in range(row * group, row * group + group):
                weights = scores[m]
                # behind the context, the scores of what is seen close up
                for j in range(counts[row]):
                    weights[context + j] = weights[seen[row, j]]
                totals[m] = np.reciprocal(_softmax(weights, context + counts[row], least))
        _mix_context(scores, context, values[k], mixed)
        for row in range(n):
            for g in range(group):
                m = row * group + g
                _mix_own(scores[m], seen[row], context, context + counts[row], values[k], mixed[m])
                for i in range(dim):
                    out[row, (k * group + g) * dim + i] = stored(mixed[m, i] * totals[m], out)


@_compiled
def move_rows(keys, values, length, rows):
    """Row length + rows[i] becomes row length + i, of keys [layers, kv_heads, blocks, d, BLOCK] and values [layers,
    kv_heads, room, d]. rows ascend, so none is overwritten before it has been read."""
    layers, key_heads, _, dim, _ = keys.shape
    for layer in range(layers):
        for k in range(key_heads):
            for i in range(len(rows)):
                new, old = length + i, length + rows[i]
                for d in range(dim):
                    keys[layer, k, new // BLOCK, d, new % BLOCK] = keys[layer, k, old // BLOCK, d, old % BLOCK]
                    values[layer, k, new, d] = values[layer, k, old, d]
