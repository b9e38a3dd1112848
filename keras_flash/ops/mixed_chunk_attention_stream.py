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
    size, count = ops.shape(values)[1], chunk_size
    single = values.shape[1] == 1
    num_chunks = (size + 2 * count - 2) // count  # enough wherever it starts
    chunk, start = state["position"] // count, state["position"] % count
    index = slot_index(num_chunks * count, start)  # (b, g c)
    ended = (start + length) // count  # how many chunks end in this piece

    def chunks(x):
        return split_axis(x, num_chunks, count)

    def lay_out_queries(x):
        """In chunks; those of a single token stay one row."""
        x = at_least_float32(x)
        return ops.expand_dims(x, 1) if single else chunks(take_rows(x, index))

    def lay_out_keys(x, cache=None):
        x = at_least_float32(x)
        cache = ops.zeros_like(x[:, :1]) if cache is None else cache
        return chunks(lay_out(cache, x, index, length))

    laid_out = lay_out_keys(values, state.get("values"))  # (b, g, c, e)
    new_state = {"position": state["position"] + length}
    outputs = 0.0
    if quadratic is not None:
        queries = lay_out_queries(quadratic[0])
        keys = lay_out_keys(quadratic[1], state["keys"])
        divisor = score_divisor(queries, count, activation, scale_scores)
        scores = ops.matmul(queries / divisor, ops.swapaxes(keys, 2, 3))
        visible, biases = _inside(index, count, single, bias)
        if bias is not None:
            scores = scores + biases
        weights = attention_weights(scores, visible, activation)
        outputs = ops.matmul(weights, laid_out)
        for name, x in (("keys", keys), ("values", laid_out)):
            # Of the chunk that the next token goes to: none yet where it is new.
            current = pick(pad_axis(x, 1), ended)
            new_state[name] = ops.cast(current, state[name].dtype)
    if linear is not None:
        queries = lay_out_queries(linear[0])
        if single:  # one product of two vectors
            token = [
                ops.expand_dims(at_least_float32(x), 1) for x in (linear[1], values)
            ]
            came = ops.where(length > 0, chunk_summaries(*token), 0.0)
        else:
            came = chunk_summaries(lay_out_keys(linear[1]), laid_out)  # (b, g, d, e)
        pending = ops.expand_dims(state["pending"], 1)
        came = ops.concatenate([pending + came[:, :1], came[:, 1:]], axis=1)
        came = pad_axis(came, 1)
        (before,) = exclusive((ops.cumsum(came, axis=1),), (0.0,))
        before = before + ops.expand_dims(state["summary"], 1)  # (b, g + 1, d, e)
        number = ops.expand_dims(chunk, 1) + ops.arange(0, num_chunks, dtype="int32")
        total = fixed_total(global_normalization, count)
        queries = divide(queries, number * count, total)
        outputs = outputs + ops.matmul(queries, before[:, :-1])
        new_state["summary"] = pick(before, ended)
        new_state["pending"] = pick(came, ended)
    outputs = merge_axis(outputs)
    if not single:
        places = ops.arange(0, size, dtype="int32")
        outputs = take_rows(outputs, ops.expand_dims(start, 1) + places)
    return outputs, new_state


def _inside(index, count, single, bias):
    """Which keys of its chunk a query sees, and their biases."""
    if single:  # the query is token 0 of the piece, and slots are counted from it
        distances = ops.expand_dims(ops.expand_dims(index, 1), 1)  # (b, 1, 1, c)
        return distances <= 0, None if bias is None else bias(distances)
    slots = ops.arange(0, count, dtype="int32")
    visible = ops.expand_dims(slots, 0) <= ops.expand_dims(slots, 1)  # (c, c)
    if bias is None:
        return visible, None
    return visible, toeplitz_matrix(bias(distances_between(count, count)), count, count)
