"""Mixed chunk attention continued from a state, piece by piece.

The same sums as the causal form of `mixed_chunk_attention`. A piece may start
anywhere in a chunk, in each row of the batch at another place, so it is laid out on
chunk borders beside what the state holds of the chunk it starts in.

b batch, g chunk index, c position in a chunk, t query position in the piece, s key
position, d key feature, e value feature. C is the chunk size.
"""

from keras import ops

from keras_flash.ops.activations import attention_weights
from keras_flash.ops.activations import relu_squared
from keras_flash.ops.mixed_chunk_attention import chunk_summaries
from keras_flash.ops.mixed_chunk_attention import divide
from keras_flash.ops.mixed_chunk_attention import fixed_total
from keras_flash.ops.mixed_chunk_attention import score_divisor
from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.relative_position_bias import distances_between
from keras_flash.ops.relative_position_bias import toeplitz_matrix
from keras_flash.ops.scan import exclusive
from keras_flash.ops.scan import merge_axis
from keras_flash.ops.scan import pad_axis
from keras_flash.ops.scan import split_axis
from keras_flash.ops.segments import visible_keys
from keras_flash.ops.streams import lay_out
from keras_flash.ops.streams import pick
from keras_flash.ops.streams import slot_index
from keras_flash.ops.streams import take_rows


def mixed_chunk_attention_stream(
    quadratic,
    linear,
    values,
    state,
    length,
    chunk_size,
    bias=None,
    activation=relu_squared,
    scale_scores=True,
    global_normalization="mean",
):
    """The next outputs of the causal form, and the state after them.

    Args:
        quadratic: pair of queries and keys, each `(b, t, d)`, or `None`.
        linear: pair of queries and keys, each `(b, t, d)`, or `None`.
        values: `(b, t, e)`.
        state: dict of `position` int32 `(b,)`, the number of tokens before the
            piece; with `quadratic` also `keys` `(b, C, d)` and `values`
            `(b, C, e)`, those of the current chunk, zeros behind them; with
            `linear` also `summary` and `pending` `(b, d, e)`, the sums
            `sum_s k_s v_s^T` of the whole chunks before the current one and of
            what has come of the current one.
        length: how many tokens of the piece count, at most t.
        chunk_size: int, C.
        bias: function from int32 distances to floats of the same shape, or
            `None`.
        activation: as in `mixed_chunk_attention`, like the rest.
        scale_scores: likewise.
        global_normalization: likewise.

    Returns:
        `(b, t, e)` in at least float32, and the new state.
    """
    divisor = None
    if quadratic is not None:
        divisor = score_divisor(quadratic[0], chunk_size, activation, scale_scores)
    is_token = isinstance(values.shape[1], int) and values.shape[1] == 1
    form = _token if is_token else _piece
    outputs, state_after = form(
        quadratic,
        linear,
        at_least_float32(values),
        state,
        length,
        chunk_size,
        bias,
        activation,
        divisor,
        fixed_total(global_normalization, chunk_size),
    )
    state_after["position"] = state["position"] + length
    return outputs, state_after


def _chunk_and_place(state, size):
    """The current chunk, and how many tokens it holds."""
    # By name, and without a remainder: jax2onnx knows no other way.
    chunk = ops.floor_divide(state["position"], size)
    return chunk, state["position"] - chunk * size


def _token(
    quadratic, linear, values, state, length, size, bias, activation, divisor, total
):
    """One token: a row of scores, and one product of two vectors for the sums."""
    _, start = _chunk_and_place(state, size)
    index = slot_index(size, start)  # (b, c), 0 where the token belongs
    ended = ops.equal(start + length, size)
    ended = ops.expand_dims(ops.expand_dims(ended, 1), 1)
    outputs, after = 0.0, {}
    if quadratic is not None:
        queries, keys = [at_least_float32(x) for x in quadratic]
        keys = lay_out(state["keys"], keys, index, length)
        laid_out = lay_out(state["values"], values, index, length)
        scores = ops.matmul(queries / divisor, ops.swapaxes(keys, 1, 2))  # (b, 1, c)
        distances = ops.expand_dims(index, 1)
        if bias is not None:
            scores = scores + bias(distances)
        weights = attention_weights(scores, distances <= 0, activation)
        outputs = ops.matmul(weights, laid_out)
        for name, x in (("keys", keys), ("values", laid_out)):
            after[name] = ops.cast(ops.where(ended, 0.0, x), state[name].dtype)
    if linear is not None:
        queries, keys = [at_least_float32(x) for x in linear]
        before = state["position"] - start  # keys in the chunks before
        queries = divide(queries, ops.expand_dims(before, 1), total)
        outputs = outputs + ops.matmul(queries, state["summary"])
        came = ops.swapaxes(keys, 1, 2) * values  # (b, d, e)
        pending = state["pending"] + ops.where(length > 0, came, 0.0)
        after["summary"] = state["summary"] + ops.where(ended, pending, 0.0)
        after["pending"] = ops.where(ended, 0.0, pending)
    return outputs, after


def _piece(
    quadratic, linear, values, state, length, size, bias, activation, divisor, total
):
    """Several tokens, laid out in chunks beside what the current chunk holds."""
    num_tokens = ops.shape(values)[1]
    num_chunks = (num_tokens + 2 * size - 2) // size  # enough wherever it starts
    chunk, start = _chunk_and_place(state, size)
    index = slot_index(num_chunks * size, start)  # (b, g c)
    ended = ops.floor_divide(start + length, size)  # how many chunks end in this piece

    def chunks(x):
        return split_axis(x, num_chunks, size)

    def lay_out_queries(x):
        return chunks(take_rows(at_least_float32(x), index))

    def lay_out_keys(x, cache=None):
        x = at_least_float32(x)
        cache = ops.zeros_like(x[:, :1]) if cache is None else cache
        return chunks(lay_out(cache, x, index, length))

    laid_out = lay_out_keys(values, state.get("values"))  # (b, g, c, e)
    outputs, after = 0.0, {}
    if quadratic is not None:
        queries = lay_out_queries(quadratic[0])
        keys = lay_out_keys(quadratic[1], state["keys"])
        scores = ops.matmul(queries / divisor, ops.swapaxes(keys, 2, 3))
        if bias is not None:
            distances = distances_between(size, size)
            scores = scores + toeplitz_matrix(bias(distances), size, size)
        places = ops.arange(0, size, dtype="int32")
        visible = visible_keys(places, places)
        weights = attention_weights(scores, visible, activation)
        outputs = ops.matmul(weights, laid_out)
        for name, x in (("keys", keys), ("values", laid_out)):
            # Of the chunk that the next token goes to: none yet where it is new.
            current = pick(pad_axis(x, 1), ended)
            after[name] = ops.cast(current, state[name].dtype)
    if linear is not None:
        queries, came = lay_out_queries(linear[0]), lay_out_keys(linear[1])
        came = chunk_summaries(came, laid_out)  # (b, g, d, e)
        pending = ops.expand_dims(state["pending"], 1)
        came = ops.concatenate([pending + came[:, :1], came[:, 1:]], axis=1)
        (before,) = exclusive((came,), (0.0,))
        before = ops.cumsum(before, axis=1) + ops.expand_dims(state["summary"], 1)
        number = ops.expand_dims(chunk, 1) + ops.arange(0, num_chunks, dtype="int32")
        queries = divide(queries, number * size, total)
        outputs = outputs + ops.matmul(queries, before)
        numbers = ops.arange(0, num_chunks, dtype="int32")
        whole = ops.expand_dims(numbers, 0) < ops.expand_dims(ended, 1)  # (b, g)
        whole = ops.expand_dims(ops.expand_dims(whole, 2), 3)
        gone = ops.sum(ops.where(whole, came, 0.0), axis=1)
        after["summary"] = state["summary"] + gone
        after["pending"] = pick(pad_axis(came, 1), ended)
    outputs = merge_axis(outputs)
    places = ops.arange(0, num_tokens, dtype="int32")
    return take_rows(outputs, ops.expand_dims(start, 1) + places), after
