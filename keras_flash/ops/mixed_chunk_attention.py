"""Mixed chunk attention (FLASH, section 3.2, eq. 7-8).

    y_t = sum_(s in the chunk of t) kernel(q_t . k_s / C + bias_(s - t)) v_s
        + q'_t . sum_s k'_s v_s^T / m

q, k are the quadratic queries and keys, q', k' the linear ones. The second sum runs
over strictly earlier chunks when causal, over all chunks otherwise.

b batch, g chunk index, c position in a chunk, t query position, s key position,
d key feature, e value feature. C is the chunk size.
"""

import math

from keras import ops

from keras_flash.ops.activations import attention_weights
from keras_flash.ops.activations import relu_squared
from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.relative_position_bias import toeplitz_matrix
from keras_flash.ops.scan import exclusive
from keras_flash.ops.scan import inclusive_scan
from keras_flash.ops.scan import merge_axis
from keras_flash.ops.scan import pad_axis
from keras_flash.ops.scan import split_axis
from keras_flash.ops.segments import keep_where
from keras_flash.ops.segments import real_tokens
from keras_flash.ops.segments import run_numbers
from keras_flash.ops.segments import visible_keys


def mixed_chunk_attention(
    quadratic,
    linear,
    values,
    chunk_size,
    bias=None,
    mask=None,
    segment_ids=None,
    causal=False,
    activation=relu_squared,
    scale_scores=True,
    global_normalization="mean",
):
    """Exact attention inside chunks plus linear attention across them.

    Args:
        quadratic: pair of queries and keys, each `(b, t, d)`, or `None` to leave
            the local sum out.
        linear: pair of queries and keys, each `(b, t, d)`, or `None` to leave
            the global sum out.
        values: `(b, t, e)`.
        chunk_size: int, C.
        bias: `(2C - 1,)`, by distance from `-(C - 1)` to `C - 1`, or `None`.
        mask: boolean `(b, t)`, True = real token, or `None`.
        segment_ids: int `(b, t)`; tokens see their own run of equal ids only.
        causal: whether a query sees no later key.
        activation: `"softmax"` (scores over sqrt(d)), or a function of a score.
        scale_scores: whether local scores are divided by C. Not read under
            softmax.
        global_normalization: `"mean"`: m is the number of keys summed;
            `"chunk"`: m = C; `"sum"`: m = 1.

    Returns:
        `(b, t, e)` in at least float32, since it is gated before it is rounded.
    """
    length = ops.shape(values)[1]
    size = min(chunk_size, length) if isinstance(length, int) else chunk_size
    num_chunks = (length + size - 1) // size
    padding = num_chunks * size - length
    values = keep_where(mask, values)  # 0 times what is not finite is not 0
    whole = isinstance(padding, int) and padding == 0
    if mask is None and (not whole or segment_ids is not None):
        mask = real_tokens(mask, values)

    def chunks(x, fill=0):
        return split_axis(pad_axis(x, padding, fill), num_chunks, size)

    values = chunks(at_least_float32(values))  # (b, g, c, e)
    mask = None if mask is None else chunks(mask, False)  # (b, g, c)
    runs = None if segment_ids is None else chunks(run_numbers(segment_ids), -1)
    outputs = 0.0
    if quadratic is not None:
        queries, keys = [chunks(at_least_float32(x)) for x in quadratic]
        if bias is not None:
            first = chunk_size - size
            bias = toeplitz_matrix(bias[first : first + 2 * size - 1], size, size)
        outputs = _local(
            queries,
            keys,
            values,
            bias,
            mask,
            runs,
            causal,
            activation,
            score_divisor(queries, chunk_size, activation, scale_scores),
        )
    if linear is not None:
        queries, keys = [chunks(at_least_float32(x)) for x in linear]
        # Sums of means of chunks, so that they grow less with the length.
        keys = keep_where(mask, keys) / size
        total = fixed_total(global_normalization, chunk_size)
        if runs is not None:
            across = _global_segments(queries, keys, values, mask, runs, causal, total)
        elif causal:
            across = _global_causal(queries, keys, values, _count(keys, mask), total)
        else:
            across = _global(queries, keys, values, _count(keys, mask), total)
        outputs = outputs + across
    return merge_axis(outputs)[:, :length]


def _local(queries, keys, values, bias, mask, runs, causal, activation, divisor):
    """Attention inside each chunk."""
    positions = ops.arange(0, queries.shape[2], dtype="int32") if causal else None
    visible = visible_keys(positions, positions, mask, runs, runs)  # (b, g, t, s)
    scores = ops.matmul(queries / divisor, ops.swapaxes(keys, 2, 3))
    if bias is not None:
        scores = scores + bias
    return ops.matmul(attention_weights(scores, visible, activation), values)


def score_divisor(queries, chunk_size, activation, scale_scores):
    """What local scores are divided by."""
    if activation == "softmax":
        return math.sqrt(queries.shape[-1])
    return chunk_size if scale_scores else 1


def fixed_total(global_normalization, chunk_size):
    """The m of the global sum where it is one number, else `None`."""
    return {"mean": None, "chunk": chunk_size, "sum": 1}[global_normalization]


def chunk_summaries(keys, values):
    """`sum_s k_s v_s^T` of each chunk: `(b, g, d, e)`."""
    return ops.matmul(ops.swapaxes(keys, 2, 3), values)


def _count(keys, mask):
    """Number of keys in each chunk, int32 `(b, g)`."""
    if mask is None:
        return ops.full_like(keys[:, :, 0, 0], keys.shape[2], dtype="int32")
    return ops.sum(ops.cast(mask, "int32"), axis=2)


def divide(queries, count, total, unit=1):
    """Queries over m: the count of keys where `total` is `None`.

    `count` has the first axes of the queries. A sum of no keys is 0 whatever it is
    divided by. Of sums over `unit`, m is that much smaller.
    """
    if total is not None:
        return queries / (total / unit)
    count = ops.cast(ops.maximum(count, 1), queries.dtype) / unit
    while len(count.shape) < len(queries.shape):
        count = ops.expand_dims(count, -1)
    return queries / count


def _global(queries, keys, values, counts, total):
    """Every query sees every key: one summary serves all chunks."""
    summary = ops.matmul(
        ops.swapaxes(merge_axis(keys), 1, 2), merge_axis(values)
    )  # (b, d, e)
    count = ops.sum(counts, axis=1, keepdims=True)
    num_chunks, size = ops.shape(queries)[1], queries.shape[2]
    queries = merge_axis(divide(queries, count, total, size))
    return split_axis(ops.matmul(queries, summary), num_chunks, size)


def _global_causal(queries, keys, values, counts, total):
    """A query sees the chunks before its own: exclusive running sums.

    Never the inclusive sum less the own chunk: that would let the future back
    in as rounding.
    """
    # Shifted first: a cut of the sums would tell an exporter of their strides.
    state, count = exclusive((chunk_summaries(keys, values), counts), (0.0, 0))
    state, count = ops.cumsum(state, axis=1), ops.cumsum(count, axis=1)
    return ops.matmul(divide(queries, count, total, queries.shape[2]), state)


def _carry(keys, values, mask, runs, border_runs):
    """What each chunk receives from the chunks before it, with resets.

    Only one segment can cross a border between chunks: the one of the last
    token before it. So the state that leaves a chunk is that segment's sum so
    far, and it takes up the state that came in only where the two are of one
    segment.

    Args:
        border_runs: `(b, g)`, the run that reaches over the end of each chunk.

    Returns:
        The run, the summary `(b, g, d, e)` and the count that come into each
        chunk. The first chunk receives run -2, which no token has.
    """
    leaving = ops.equal(runs, ops.expand_dims(border_runs, 2))
    summaries = chunk_summaries(keep_where(leaving, keys), values)
    counts = _count(keys, ops.logical_and(mask, leaving))

    def combine(earlier, later):
        same = ops.equal(earlier[0], later[0])
        state = ops.where(
            ops.expand_dims(ops.expand_dims(same, -1), -1), earlier[1], 0.0
        )
        return (
            later[0],
            later[1] + state,
            later[2] + ops.where(same, earlier[2], 0),
        )

    identity = (-2, 0.0, 0)
    totals = inclusive_scan(combine, (border_runs, summaries, counts), identity)
    return exclusive(totals, identity)


def _global_segments(queries, keys, values, mask, runs, causal, total):
    """The global sum inside each segment.

    A query's keys lie in the chunks before its own, and when not causal also in
    the chunks after it and in its own.
    """
    ways = [_carry(keys, values, mask, runs, runs[:, :, -1])]
    if not causal:
        turned = [ops.flip(x, axis=1) for x in (keys, values, mask, runs)]
        back = _carry(*turned, ops.flip(runs[:, :, 0], axis=1))
        ways.append(tuple(ops.flip(x, axis=1) for x in back))
    # For each query, whether what comes into its chunk is of its segment.
    hits = [ops.equal(runs, ops.expand_dims(run, 2)) for run, _, _ in ways]
    count = sum(
        ops.where(hit, ops.expand_dims(number, 2), 0)
        for hit, (_, _, number) in zip(hits, ways)
    )  # (b, g, c)
    if not causal:
        inside = visible_keys(key_mask=mask, query_runs=runs, key_runs=runs)
        count = count + ops.sum(ops.cast(inside, "int32"), axis=-1)
    queries = divide(queries, count, total, queries.shape[2])
    outputs = sum(
        ops.matmul(keep_where(hit, queries), state)
        for hit, (_, state, _) in zip(hits, ways)
    )
    if not causal:
        products = ops.matmul(queries, ops.swapaxes(keys, 2, 3))
        outputs = outputs + ops.matmul(ops.where(inside, products, 0.0), values)
    return outputs
