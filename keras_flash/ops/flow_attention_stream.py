"""Causal Flow-Attention continued from a state, piece by piece."""

from keras import ops

from keras_flash.ops.causal_flow import causal_flow
from keras_flash.ops.flow_attention import FEATURE_MAPS
from keras_flash.ops.flow_attention import merge_heads
from keras_flash.ops.flow_attention import split_heads
from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.segments import keep_where


def flow_attention_stream(
    queries,
    keys,
    values,
    state,
    length,
    feature_map="sigmoid",
    competition="softmax",
    allocation="sigmoid",
    competition_clip=None,
    epsilon=1e-6,
):
    """The next outputs of the causal form, and the state after them.

    Args:
        queries: `(b, h, t, d)`.
        keys: `(b, h, t, d)`.
        values: `(b, h, t, e)`.
        state: that of `causal_flow`, with `(b, h)` in place of n, and `position`
            `(b,)`.
        length: how many tokens of the piece count, at most t.
        feature_map: as in `flow_attention`, like the rest.
        competition: likewise.
        allocation: likewise.
        competition_clip: likewise.
        epsilon: likewise.

    Returns:
        `(b, h, t, e)` in the dtype of `values`, and the new state.
    """
    num_heads = values.shape[1]
    phi = FEATURE_MAPS[feature_map]
    q = phi(at_least_float32(merge_heads(queries)))
    k = phi(at_least_float32(merge_heads(keys)))
    v = at_least_float32(merge_heads(values))
    places = ops.arange(0, ops.shape(q)[1], dtype="int32")
    mask = ops.logical_and(ops.ones_like(q[:, :, 0], dtype="bool"), places < length)
    position = ops.repeat(state["position"], num_heads, axis=0)
    merged = {
        name: ops.reshape(x, (-1, *x.shape[2:])) if name != "position" else position
        for name, x in state.items()
    }
    outputs, _, after = causal_flow(
        q,
        keep_where(mask, q),
        keep_where(mask, k),
        keep_where(mask, v),
        mask,
        merged,
        competition,
        allocation,
        competition_clip,
        epsilon,
    )
    after = {
        name: ops.reshape(x, (-1, num_heads, *x.shape[1:])) for name, x in after.items()
    }
    after["position"] = state["position"] + length
    return ops.cast(split_heads(num_heads)(outputs), values.dtype), after
