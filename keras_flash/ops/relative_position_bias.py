"""Bias on attention scores that depends on key position - query position only.

Every kind is a function of the distance, so a (t, s) bias has t + s - 1 different
values: they are computed once, as a vector, and laid out as a matrix by copying.
"""

import math

from keras import ops

from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.numerics import clip_index
from keras_flash.ops.rotary import rotary_cos_sin


def toeplitz_bias(table, distances, bidirectional=True):
    """One weight a distance; beyond the table its end weight holds.

    Args:
        table: `(2 * max_length - 1, 1)`, distance 0 in the middle, or
            `(max_length, 1)`, distance 0 last, where not `bidirectional`.
        distances: int tensor, key position - query position.
        bidirectional: whether positive distances have weights of their own.

    Returns:
        Tensor of the shape of `distances`.
    """
    size = table.shape[0]
    zero = size // 2 if bidirectional else size - 1
    return _look_up(at_least_float32(table), clip_index(distances + zero, size))


def rotary_bias(query_vector, key_vector, distances):
    """`rotate(query_vector, t) . rotate(key_vector, s)` (FLASH, app. D, code 4).

    With the pairs of features read as complex numbers this is the real part of
    `a conj(b) exp(-i angle(s - t))`, so only the distance enters.

    Args:
        query_vector: `(d,)`.
        key_vector: `(d,)`.
        distances: int tensor, key position - query position.

    Returns:
        Tensor of the shape of `distances`.
    """
    cos, sin = rotary_cos_sin(distances, query_vector.shape[0])
    a_real, a_imag = ops.split(at_least_float32(query_vector), 2)
    b_real, b_imag = ops.split(at_least_float32(key_vector), 2)
    real = a_real * b_real + a_imag * b_imag
    imag = a_imag * b_real - a_real * b_imag
    cos, sin = ops.cast(cos, real.dtype), ops.cast(sin, real.dtype)
    return ops.sum(cos * real + sin * imag, axis=-1)


def t5_bias(table, distances, max_distance=128, bidirectional=True):
    """Buckets as in T5: one a distance while short, then log-spaced.

    Args:
        table: `(num_buckets, 1)`; the second half is for positive distances
            where `bidirectional`.
        distances: int tensor, key position - query position.
        max_distance: int, from here on all distances share the last bucket.
        bidirectional: whether positive distances have buckets of their own.

    Returns:
        Tensor of the shape of `distances`.
    """
    buckets = table.shape[0] // 2 if bidirectional else table.shape[0]
    exact = buckets // 2
    bucket_of = [[bucket] for bucket in range(exact)]
    for distance in range(exact, max_distance + 1):
        far = math.log(distance / exact) / math.log(max_distance / exact)
        bucket_of.append([min(exact + int(far * (buckets - exact)), buckets - 1)])
    index = _look_up(
        ops.convert_to_tensor(bucket_of, dtype="int32"),
        ops.minimum(ops.abs(distances), max_distance),
    )
    if bidirectional:
        index = ops.where(distances > 0, index + buckets, index)
    return _look_up(at_least_float32(table), index)


def _look_up(table, index):
    # Tables are 2-D: exporters fail on a gather from one axis.
    return ops.squeeze(ops.take(table, index, axis=0), axis=-1)


def distances_between(num_queries, num_keys):
    """All distances of two ranges from 0: `-(t - 1), ..., s - 1`."""
    return ops.arange(1 - num_queries, num_keys, dtype="int32")


def toeplitz_matrix(values, num_queries, num_keys):
    """Lays values by distance out as matrices, without a gather.

    Args:
        values: `(..., t + s - 1)`, in the order of `distances_between`.
        num_queries: t, an int or a scalar tensor.
        num_keys: s, likewise.

    Returns:
        `(..., t, s)`, entry (i, j) is the value of distance j - i.
    """

    def cut(x, start, stop):
        # Not by an ellipsis, which LiteRT does not take where sizes are unknown.
        return x[(*[slice(None)] * (len(x.shape) - 1), slice(start, stop))]

    # Rows of t + s values, read back as rows of t + s - 1, shift by one each.
    width = num_queries + num_keys
    lead = ops.shape(values)[:-1]
    padded = ops.concatenate([values, ops.zeros_like(cut(values, 0, 1))], axis=-1)
    rows = ops.broadcast_to(ops.expand_dims(padded, -2), (*lead, num_queries, width))
    flat = ops.reshape(rows, (*lead, num_queries * width))
    first = num_queries - 1
    flat = cut(flat, first, first + num_queries * (width - 1))
    return cut(ops.reshape(flat, (*lead, num_queries, width - 1)), 0, num_keys)
