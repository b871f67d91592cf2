"""Compiled loops of the lean forward: what happens to a token between two matmuls.

A row is reckoned without regard to the rows beside it: the same operations in the same order whether a
token comes alone or in a tree, on every processor. Each runs on one thread and takes some microseconds a
layer, where plain operators take a hundred, most of it spent between them.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bastion.models.row_numbers import exponential, stored, widened

LANES = 16
"""Keys of one vector; caches hold a multiple of it."""
KEYS_AT_ONCE = 256
"""Keys whose scores are worked out together: those of one head fit a near cache."""
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
def _scores(queries, keys, first, end, scores):
    """scores [m, first:end] = queries [m, d] times keys [d, capacity], each summed over d in order.

    Bounds are multiples of LANES. A block of keys stays in a near cache for all queries. Places are unsigned, which
    spares the question whether they count from the end, and with it keeps the loops in vectors.
    """
    count, dim = queries.shape
    row = np.uintp(keys.shape[1])
    flat = keys.reshape(keys.size)
    for start in range(first, end, KEYS_AT_ONCE):
        stop = min(start + KEYS_AT_ONCE, end)
        width = np.uintp(stop - start)
        for m in range(count):
            q, some = queries[m], scores[m][start:stop]
            some[:] = 0
            for d in range(0, dim - dim % 8, 8):
                at = np.uintp(d) * row + np.uintp(start)
                q0, q1, q2, q3, q4, q5, q6, q7 = q[d], q[d + 1], q[d + 2], q[d + 3], q[d + 4], q[d + 5], q[d + 6], q[d + 7]
                a1 = at + row
                a2 = a1 + row
                a3 = a2 + row
                a4 = a3 + row
                a5 = a4 + row
                a6 = a5 + row
                a7 = a6 + row
                for i in range(width):
                    total = some[i] + q0 * flat[at + i]
                    total = total + q1 * flat[a1 + i]
                    total = total + q2 * flat[a2 + i]
                    total = total + q3 * flat[a3 + i]
                    total = total + q4 * flat[a4 + i]
                    total = total + q5 * flat[a5 + i]
                    total = total + q6 * flat[a6 + i]
                    some[i] = total + q7 * flat[a7 + i]
            for d in range(dim - dim % 8, dim):
                at = np.uintp(d) * row + np.uintp(start)
                for i in range(width):
                    some[i] = some[i] + q[d] * flat[at + i]


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
def _mixed(weights, rows, count, values, mixed):
    """mixed [d] = sum over j of weights[j] * values[rows[j]], in order."""
    mixed[:] = 0
    dim = np.uintp(len(mixed))
    flat = values.reshape(values.size)
    whole = count - count % 8
    for j in range(0, whole, 8):
        a0, a1, a2, a3 = np.uintp(rows[j]) * dim, np.uintp(rows[j + 1]) * dim, np.uintp(rows[j + 2]) * dim, np.uintp(rows[j + 3]) * dim
        a4, a5 = np.uintp(rows[j + 4]) * dim, np.uintp(rows[j + 5]) * dim
        a6, a7 = np.uintp(rows[j + 6]) * dim, np.uintp(rows[j + 7]) * dim
        w0, w1, w2, w3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        w4, w5, w6, w7 = weights[j + 4], weights[j + 5], weights[j + 6], weights[j + 7]
        for d in range(dim):
            total = mixed[d] + w0 * flat[a0 + d]
            total = total + w1 * flat[a1 + d]
            total = total + w2 * flat[a2 + d]
            total = total + w3 * flat[a3 + d]
            total = total + w4 * flat[a4 + d]
            total = total + w5 * flat[a5 + d]
            total = total + w6 * flat[a6 + d]
            mixed[d] = total + w7 * flat[a7 + d]
    for j in range(whole, count):
        at = np.uintp(rows[j]) * dim
        for d in range(dim):
            mixed[d] = mixed[d] + weights[j] * flat[at + d]


@_compiled
def attend_rows(qkv, query_norm, key_norm, share, eps, cos, sin, keys, values, length, context, seen, counts, least, out):
    """n new tokens write their keys and values behind `length` rows and attend to what each may see.

    qkv [n, (heads + 2 kv_heads) * d]; norms [d], or empty; cos, sin [n, d / 2]; keys [kv_heads, d, capacity], values
    [kv_heads, capacity, d]. Token i sees the first `context` rows, and those of seen[i, : counts[i]], ascending.
    least: the lowest exponent worth taking. out [n, heads * d].
    """
    n, half = cos.shape
    dim, key_heads = 2 * half, len(keys)
    heads = out.shape[1] // dim
    group = heads // key_heads
    end = length + n
    head = np.empty(dim, keys.dtype)
    for row in range(n):
        for k in range(key_heads):
            _normed_head(qkv[row], (heads + k) * dim, key_norm, share, eps, head)
            for i in range(half):
                keys[k, i, length + row] = head[i] * cos[row, i] - head[half + i] * sin[row, i]
                keys[k, half + i, length + row] = head[half + i] * cos[row, i] + head[i] * sin[row, i]
            for i in range(dim):
                values[k, length + row, i] = widened(qkv[row, (heads + key_heads + k) * dim + i])
    first = 0 if context else seen[:, 0].min() // LANES * LANES
    scaling = np.reciprocal(np.sqrt(share * 0 + dim))
    queries = np.empty((n * group, dim), keys.dtype)
    scores = np.empty((n * group, end + LANES), keys.dtype)
    rows = np.empty(end, np.int32)
    for j in range(context):
        rows[j] = j
    for k in range(key_heads):
        for row in range(n):
            for g in range(group):
                _normed_head(qkv[row], (k * group + g) * dim, query_norm, share, eps, head)
                for i in range(half):
                    queries[row * group + g, i] = (head[i] * cos[row, i] - head[half + i] * sin[row, i]) * scaling
                    queries[row * group + g, half + i] = (head[half + i] * cos[row, i] + head[i] * sin[row, i]) * scaling
        _scores(queries, keys[k], first, (end + LANES - 1) // LANES * LANES, scores)
        for row in range(n):
            count = context + counts[row]
            for j in range(context, count):
                rows[j] = seen[row, j - context]
            for g in range(group):
                weights = scores[row * group + g]
                for j in range(context, count):
                    weights[j] = weights[rows[j]]
                total = _softmax(weights, count, least)
                _mixed(weights, rows, count, values[k], head)
                share_of_one = np.reciprocal(total)
                for i in range(dim):
                    out[row, (k * group + g) * dim + i] = stored(head[i] * share_of_one, out)
