"""The attention of the gated attention unit (FLASH, section 2, eq. 3-5).

    y_t = sum_s a_ts v_s        a_ts = kernel(q_t . k_s / n_t + bias_(s - t))

b batch, t query position, s key position, d key feature, e value feature.
"""

import math

from keras import ops

from keras_flash.ops.activations import attention_weights
from keras_flash.ops.activations import relu_squared
from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.relative_position_bias import toeplitz_matrix
from keras_flash.ops.segments import keep_where
from keras_flash.ops.segments import run_numbers
from keras_flash.ops.segments import visible_keys

MIN_ROWS = 128  # smaller blocks cost more in calls than they save
MAX_BLOCKS = 16  # bounds the size of the compiled program at any length


def gated_attention(
    queries,
    keys,
    values,
    bias=None,
    mask=None,
    segment_ids=None,
    causal=False,
    activation=relu_squared,
    normalization_length="visible",
):
    """Single-head attention with any kernel, in blocks of query rows.

    A block of rows meets only the keys up to its last row when `causal`, so the
    half of the scores that the mask would throw away is not computed, and in
    inference no (t, t) matrix is held, only a sixteenth of its rows at a time.
    That needs a length of more than `MIN_ROWS` that is known when traced; otherwise
    all rows are one block.

    Args:
        queries: `(b, t, d)`.
        keys: `(b, t, d)`.
        values: `(b, t, e)`.
        bias: `(2t - 1,)`, by distance from `-(t - 1)` to `t - 1`, or `None`.
        mask: boolean `(b, t)`, True = real token, or `None`.
        segment_ids: int `(b, t)`; tokens see their own run of equal ids only.
        causal: whether a query sees no later key.
        activation: `"softmax"` (scores over sqrt(d)), or a function of a score.
        normalization_length: `"visible"`: n_t is the number of keys that query t
            may see; an int: that constant. Not read under softmax.

    Returns:
        `(b, t, e)` in at least float32, since it is gated before it is rounded.
        Queries with no visible key get 0.
    """
    queries, keys, values = map(at_least_float32, (queries, keys, values))
    values = keep_where(mask, values)  # 0 times what is not finite is not 0
    length = ops.shape(queries)[1]
    runs = None if segment_ids is None else run_numbers(segment_ids)

    def block(start, stop):
        last = stop if causal else length  # keys 0 to last
        visible = visible_keys(
            ops.arange(start, stop, dtype="int32") if causal else None,
            ops.arange(0, last, dtype="int32") if causal else None,
            None if mask is None else mask[:, :last],
            None if runs is None else runs[:, start:stop],
            None if runs is None else runs[:, :last],
        )
        scores = ops.matmul(
            scale_queries(
                queries[:, start:stop], keys, visible, activation, normalization_length
            ),
            ops.swapaxes(keys[:, :last], 1, 2),
        )
        if bias is not None:
            first = length - stop  # bias[first] is the distance of (stop - 1, 0)
            distances = bias[first : first + (stop - start) + last - 1]
            scores = scores + toeplitz_matrix(distances, stop - start, last)
        weights = attention_weights(scores, visible, activation)
        return ops.matmul(weights, values[:, :last])

    return in_row_blocks(block, queries)


def in_row_blocks(block, queries):
    """`block(start, stop)` of all rows, block by block where their number is known."""
    length = queries.shape[1]
    if not isinstance(length, int):
        return block(0, ops.shape(queries)[1])
    rows = max(MIN_ROWS, math.ceil(length / MAX_BLOCKS))
    starts = range(0, length, rows)
    blocks = [block(start, min(start + rows, length)) for start in starts]
    return blocks[0] if len(blocks) == 1 else ops.concatenate(blocks, axis=1)


def scale_queries(queries, keys, visible, activation, normalization_length):
    """Queries divided by what their scores must be divided by."""
    if activation == "softmax":
        return queries / math.sqrt(queries.shape[-1])
    if normalization_length != "visible":
        return queries / normalization_length
    if visible is None:
        # Counted on a tensor: an exporter would bake a length in as a number.
        count = ops.sum(ops.ones_like(keys[:1, :, :1]), axis=1, keepdims=True)
        return queries / count
    count = ops.sum(ops.cast(visible, queries.dtype), axis=-1, keepdims=True)
    return queries / ops.maximum(count, 1.0)
