"""The causal form of Flow-Attention, from any state (Wu et al., 2022, section 3.2).

Each sum of `flow_attention.py` runs up to the same position, and with n_t the number
of positions so far the reciprocals are n_s / O_s and n_t / I_t, both results over n_t:

    I_t = (q_t + eps) . (sum_(s <= t) k_s + eps)
    O_s = (k_s + eps) . (sum_(t <= s) q_t + eps)
    I'_t = (q_t + eps) . (sum_(s <= t) k_s n_s / O_s + eps) / n_t
    O'_s = (k_s + eps) . (sum_(t <= s) q_t n_t / I_t + eps) / n_s
    competition_s = n_s exp(O'_s) / sum_(r <= s) exp(O'_r)
    y_t = sigmoid(I'_t) (q_t / I_t) . sum_(s <= t) k_s (competition_s v_s)^T

n batch and head in one axis, g chunk index, c position in a chunk, t query position, s
key position, d key feature, e value feature.
"""

from keras import ops

from keras_flash.ops.scan import exclusive
from keras_flash.ops.scan import inclusive_scan
from keras_flash.ops.scan import merge_axis
from keras_flash.ops.scan import pad_axis
from keras_flash.ops.scan import split_axis
from keras_flash.ops.segments import keep_where
from keras_flash.ops.segments import real_tokens
from keras_flash.ops.segments import visible_keys

# Tokens in a tile: of products, and of sums, which XLA makes by windows as long as the
# tile. No result depends on them.
CHUNK, SUMS = 64, 16
LEVELS = 6  # of the scan, where the length is unknown: the last holds t / 8 ** 5


def initial_flow(q, v):
    """The state before the first token, for the features of q and v: zeros."""
    none = ops.zeros_like(q[:, 0])  # (n, d)
    empty = none[:, 0]  # (n,)
    return {
        "position": ops.cast(empty, "int32"),
        "keys": none,
        "queries": none,
        "keys_over": none,
        "queries_over": none,
        "maximum": empty,
        "total": empty,
        "summary": ops.expand_dims(none, 2) * ops.expand_dims(v[:, 0], 1),
    }


def causal_flow(
    q, q_sum, k, v, mask, state, competition, allocation, competition_clip, epsilon
):
    """Continues the running sums by a piece.

    Args:
        q: `(n, t, d)`, features of the queries.
        q_sum: the same with zeros where masked.
        k: `(n, t, d)`, features of the keys, zeros where masked.
        v: `(n, t, e)`.
        mask: boolean `(n, t)`, True = real token, or `None`.
        state: dict of `position` int32 `(n,)`, the number of real tokens before
            the piece; the sums before it, `keys` of k, `queries` of q, `keys_over`
            of k n / O and `queries_over` of q n / I `(n, d)` and `summary` of
            k (competition v)^T `(n, d, e)`; and the softmax over the sources,
            their `maximum` and the `total` of exp(O' - maximum) `(n,)`. All of it is
            0 before the first token: so is the maximum, as no source is below 0.
        competition: as in `flow_attention`, like the rest.
        allocation: likewise.
        competition_clip: likewise.
        epsilon: likewise.

    Returns:
        `(n, t, e)`, the flow, and the state after the piece.
    """
    is_real = real_tokens(mask, q)
    number = ops.cast(is_real, "int32")
    position = ops.expand_dims(state["position"], 1) + ops.cumsum(number, axis=1)
    count = ops.cast(ops.maximum(position, 1), q.dtype)  # (n, t)
    after = {"position": state["position"] + ops.sum(number, axis=1)}
    n = ops.expand_dims(count, -1)
    # Over n_t before any sum: I / n and O / n do not grow with the length.
    q_eps, k_eps = (q + epsilon) / n, (k + epsilon) / n

    def flow_of(first, x, name):
        """`first_t . (sum_(s <= t) x_s + epsilon)`."""
        product, after[name] = _dot_running_sum(first, x, state[name], epsilon)
        return product

    incoming = flow_of(q_eps, k, "keys")
    outgoing = flow_of(k_eps, q_sum, "queries")
    k_over = k / ops.expand_dims(outgoing, -1)
    q_over = keep_where(mask, q / ops.expand_dims(incoming, -1))
    sink = flow_of(q_eps, k_over, "keys_over")
    source = flow_of(k_eps, q_over, "queries_over")
    if competition_clip is not None:
        source = ops.clip(source, -competition_clip, competition_clip)

    pair = state["maximum"], state["total"]
    if competition == "softmax":
        source = ops.where(is_real, source, 0.0)
        (high, sums), pair = _running_softmax(source, is_real, pair)
        # With no source yet there is no sum; nothing is read there.
        competing = count * ops.exp(source - high) / ops.where(sums > 0, sums, 1.0)
    elif competition == "sigmoid":
        competing = ops.sigmoid(source)
    else:
        competing = ops.ones_like(source)
    competing = ops.where(is_real, competing, 0.0)
    allocated = ops.sigmoid(sink) if allocation else ops.ones_like(sink)

    after["maximum"], after["total"] = pair
    outputs, after["summary"] = _running_attention(
        q / n, k, v * ops.expand_dims(competing, -1), state["summary"]
    )
    outputs = outputs * ops.expand_dims(allocated / incoming, -1)
    flow = {
        "incoming": incoming * count,
        "outgoing": outgoing * count,
        "competition": competing,
        "allocation": allocated,
    }
    return outputs, flow, after


def dot(first, second):
    return ops.sum(first * second, axis=-1)


def _past(size):
    """Whether s <= t, boolean `(t, s)`."""
    positions = ops.arange(0, size, dtype="int32")
    return visible_keys(positions, positions)


def _chunks(x, size):
    """`(n, t, ...)` to `(n, g, c, ...)`, padded with zeros at the end."""
    length = ops.shape(x)[1]
    size = min(size, length) if isinstance(length, int) else size
    num_chunks = (length + size - 1) // size
    return split_axis(pad_axis(x, num_chunks * size - length), num_chunks, size)


# The last total is made apart from the running ones, and not cut out of them: on torch
# a cut keeps all of its tensor in memory, and its strides tell a compiled step of the
# length of the piece.


def _dot_running_sum(first, x, before, epsilon):
    """`first_t . (before + sum_(s <= t) x_s + epsilon)`, and the last sum.

    In two levels, inside a chunk and before it: two short sums round less than one
    long sum, whose error grows with t. Not by a product of matrices, whose inputs some
    devices round.
    """
    length, first = ops.shape(x)[1], _chunks(first, SUMS)
    inside = ops.cumsum(_chunks(x, SUMS), axis=2)  # (n, g, c, d)
    (ahead,) = exclusive((ops.cumsum(inside[:, :, -1], axis=1),), (0.0,))
    ahead = ahead + ops.expand_dims(before, 1)  # (n, g, d)
    products = dot(first, inside + ops.expand_dims(ahead + epsilon, 2))
    return merge_axis(products)[:, :length], inside[:, -1, -1] + ahead[:, -1]


def _running_softmax(x, mask, before):
    """`m_t = max_(s <= t) x_s` and `sum_(s <= t) exp(x_s - m_t)` on top of a pair.

    No x is below 0, so that 0 stands where there is none.

    Kept as a pair: their log-sum-exp would round anew, at the size of x, in each
    step.

    Returns:
        The pairs, and the last of them.
    """

    # Nothing depends on m but the rounding, so no gradient goes through it.
    def combine(earlier, later):
        high = ops.stop_gradient(ops.maximum(earlier[0], later[0]))
        sums = sum(part * ops.exp(top - high) for top, part in (earlier, later))
        return high, sums

    def scan_block(tops, parts):
        past = _past(ops.shape(tops)[-1])
        tops = ops.where(past, ops.expand_dims(tops, -2), 0.0)  # (..., t, s)
        # Not ops.max, at which torch.compile breaks the graph.
        high = ops.stop_gradient(ops.amax(tops, axis=-1))
        weights = ops.where(past, ops.exp(tops - ops.expand_dims(high, -1)), 0.0)
        return high, ops.sum(weights * ops.expand_dims(parts, -2), axis=-1)

    pairs = x, ops.cast(mask, x.dtype)
    pairs = inclusive_scan(combine, pairs, (0.0, 0.0), LEVELS, scan_block)
    last = combine(before, tuple(pair[:, -1] for pair in pairs))
    return combine(tuple(ops.expand_dims(pair, 1) for pair in before), pairs), last


def _running_attention(q, k, v, summary):
    """`sum_(s <= t) (q_t . k_s) v_s`, and the last `sum_s k_s v_s^T`.

    Exact inside a chunk, a state before it.
    """
    q, k, chunk_v = [_chunks(x, CHUNK) for x in (q, k, v)]
    keys = ops.swapaxes(k, 2, 3)
    inside = ops.where(_past(q.shape[2]), ops.matmul(q, keys), 0.0)
    states = ops.cumsum(ops.matmul(keys, chunk_v), axis=1)
    (before,) = exclusive((states,), (0.0,))
    summary = ops.expand_dims(summary, 1)  # (n, 1, d, e)
    outputs = ops.matmul(inside, chunk_v) + ops.matmul(q, before + summary)
    outputs = merge_axis(outputs)[:, : ops.shape(v)[1]]
    return outputs, (states[:, -1:] + summary)[:, 0]
