"""The attention of the gated attention unit, continued from a key/value cache.

The same sum as the causal form of `gated_attention`. Each row of the batch stands
at a position of its own in a cache of fixed size.

b batch, t query position in the piece, s slot of the cache, d key feature, e value
feature.
"""

from keras import ops

from keras_flash.ops.activations import attention_weights
from keras_flash.ops.activations import relu_squared
from keras_flash.ops.gated_attention_unit import in_row_blocks
from keras_flash.ops.gated_attention_unit import scale_queries
from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.relative_position_bias import toeplitz_matrix
from keras_flash.ops.streams import lay_out
from keras_flash.ops.streams import slot_index


def gated_attention_stream(
    queries,
    keys,
    values,
    state,
    length,
    bias=None,
    activation=relu_squared,
    normalization_length="visible",
):
    """The next outputs of the causal form, and the state after them.

    Args:
        queries: `(b, t, d)`.
        keys: `(b, t, d)`.
        values: `(b, t, e)`.
        state: dict of `position` int32 `(b,)`, the number of tokens before the
            piece, `keys` `(b, s, d)` and `values` `(b, s, e)`, zeros from there on.
        length: how many tokens of the piece count, at most t.
        bias: function from int32 distances to floats of the same shape, or
            `None`.
        activation: as in `gated_attention`.
        normalization_length: likewise.

    Returns:
        `(b, t, e)` in at least float32, NaN at tokens that the cache has no room
        for, and the new state.
    """
    num_slots = state["keys"].shape[1]
    index = slot_index(num_slots, state["position"])  # (b, s)
    queries = at_least_float32(queries)
    keys = lay_out(state["keys"], at_least_float32(keys), index, length)
    values = lay_out(state["values"], at_least_float32(values), index, length)

    def block(start, stop):
        places = ops.arange(start, stop, dtype="int32")
        places = ops.expand_dims(places, 1)  # (t, 1), the token that asks
        visible = ops.expand_dims(index, 1) <= places  # (b, t, s)
        rows = scale_queries(
            queries[:, start:stop], keys, visible, activation, normalization_length
        )
        scores = ops.matmul(rows, ops.swapaxes(keys, 1, 2))
        if bias is not None:
            distances = slot_index(num_slots + (stop - start) - 1, state["position"])
            biases = bias(distances - (stop - 1))
            scores = scores + toeplitz_matrix(biases, stop - start, num_slots)
        outputs = ops.matmul(attention_weights(scores, visible, activation), values)
        places = places[:, 0]
        fits = ops.expand_dims(state["position"], 1) + places < num_slots
        fits = ops.logical_or(fits, places >= length)  # those are not read
        return ops.where(ops.expand_dims(fits, -1), outputs, float("nan"))

    return in_row_blocks(block, queries), {
        "position": state["position"] + length,
        "keys": ops.cast(keys, state["keys"].dtype),
        "values": ops.cast(values, state["values"].dtype),
    }
