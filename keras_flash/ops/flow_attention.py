"""Flow-Attention (Wu et al., 2022, section 3.2).

Values are sources, results are sinks, `phi(q) . phi(k)` is the capacity between
them. With q, k already mapped, L queries and S keys:

    incoming    I_t  = (q_t + eps) . (sum_s k_s + eps)
    outgoing    O_s  = (k_s + eps) . (sum_t q_t + eps)
    sink        I'_t = (q_t + eps) . (sum_s k_s / O_s + eps)
    source      O'_s = (k_s + eps) . (sum_t q_t / I_t + eps)
    y_t = allocation_t (q_t / I_t) . sum_s k_s (competition_s v_s)^T
    competition_s = S softmax_s(O'_s)         allocation_t = sigmoid(I'_t L / S)

`causal_flow.py` has the causal form.

b batch, h head, t query position, s key position, d key feature, e value feature.
Inside, batch and head are one axis n.
"""

from keras import ops

from keras_flash.ops.activations import softmax
from keras_flash.ops.causal_flow import causal_flow
from keras_flash.ops.causal_flow import dot
from keras_flash.ops.causal_flow import initial_flow
from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.segments import keep_where
from keras_flash.ops.segments import real_tokens

BELOW = -1e3  # no sink and no source is below 0; the exponential of this is 0
FEATURE_MAPS = {
    "sigmoid": ops.sigmoid,
    # elu(x) + 1; that sum itself would cancel below zero.
    "elu": lambda x: ops.where(x > 0, x + 1.0, ops.exp(ops.minimum(x, 0.0))),
    "relu": ops.relu,
}


def flow_attention(
    queries,
    keys,
    values,
    query_mask=None,
    key_mask=None,
    causal=False,
    feature_map="sigmoid",
    competition="softmax",
    allocation="sigmoid",
    competition_clip=None,
    epsilon=1e-6,
):
    """Attention by conserved flows, in time and memory linear in the length.

    Args:
        queries: `(b, h, t, d)`.
        keys: `(b, h, s, d)`.
        values: `(b, h, s, e)`.
        query_mask: boolean `(b, t)`, True = real token, or `None`.
        key_mask: boolean `(b, s)`, or `None`. When causal the two are ANDed.
        causal: whether a query sees no later key; then t = s.
        feature_map: `"sigmoid"`, `"elu"` (elu + 1) or `"relu"`.
        competition: `"softmax"`, `"sigmoid"` (of O') or `None` (1).
        allocation: `"sigmoid"`, `"softmax"` (L softmax over queries of I', not
            causal) or `None` (1).
        competition_clip: float, O' is clipped to plus or minus this, or `None`.
        epsilon: float, added to both factors of each sum.

    Returns:
        `(b, h, t, e)` in the dtype of `values`, and a dict of float tensors:
        `"incoming"` I and `"allocation"` `(b, h, t)`, `"outgoing"` O and
        `"competition"` `(b, h, s)`, which is 0 at masked keys.
    """
    dtype, num_heads = values.dtype, values.shape[1]
    if causal and query_mask is not None and key_mask is not None:
        query_mask = key_mask = ops.logical_and(query_mask, key_mask)
    elif causal:
        query_mask = key_mask = key_mask if query_mask is None else query_mask
    phi = FEATURE_MAPS[feature_map]
    q = phi(at_least_float32(merge_heads(queries)))
    k = phi(at_least_float32(merge_heads(keys)))
    v = at_least_float32(merge_heads(values))
    query_mask = mask_heads(query_mask, num_heads)  # (n, t)
    key_mask = mask_heads(key_mask, num_heads)  # (n, s)
    v = keep_where(key_mask, v)  # 0 times what is not finite is not 0
    k = keep_where(key_mask, k)
    # A masked query keeps its row for its own result, which nobody reads.
    q_sum = keep_where(query_mask, q)
    options = competition, allocation, competition_clip, epsilon
    if causal:
        state = initial_flow(q, v)
        outputs, flow, _ = causal_flow(q, q_sum, k, v, key_mask, state, *options)
    else:
        outputs, flow = _full(q, q_sum, k, v, query_mask, key_mask, *options)
    split = split_heads(num_heads)
    return ops.cast(split(outputs), dtype), {
        name: ops.squeeze(split(ops.expand_dims(x, -1)), -1) for name, x in flow.items()
    }


def merge_heads(x):
    """`(b, h, t, d)` to `(b h, t, d)`."""
    return ops.reshape(x, (-1, ops.shape(x)[2], x.shape[3]))


def split_heads(num_heads):
    """The way back: a function from `(b h, t, e)` to `(b, h, t, e)`."""
    return lambda x: ops.reshape(x, (-1, num_heads, ops.shape(x)[1], x.shape[2]))


def mask_heads(mask, num_heads):
    """A `(b, t)` mask, or `None`, as `(b h, t)`."""
    if mask is None:
        return None
    mask = ops.repeat(ops.expand_dims(mask, 1), num_heads, axis=1)
    return ops.reshape(mask, (-1, ops.shape(mask)[2]))


def _full(q, q_sum, k, v, query_mask, key_mask, competition, allocation, clip, eps):
    """Each flow over the number of tokens that it comes from: I / S and O / L.

    So every sum over positions is a mean, and grows with no length where a device
    adds in half precision.
    """
    count_q, count_k = _count(query_mask, q), _count(key_mask, k)  # (n, 1), L and S
    ratio = count_q / count_k

    def mean(x, mask, count):
        if mask is None:
            return ops.mean(x, axis=1, keepdims=True)
        return ops.sum(x / ops.expand_dims(count, -1), axis=1, keepdims=True)

    def over(x, flow):
        return x / ops.expand_dims(flow, -1)

    mean_k = mean(k, key_mask, count_k)
    mean_q = mean(q_sum, query_mask, count_q)
    incoming = dot(q + eps, mean_k + over(eps, count_k))  # (n, t), I / S
    outgoing = dot(k + eps, mean_q + over(eps, count_q))  # (n, s), O / L
    k_over = mean(over(k, outgoing), key_mask, count_k)
    sink = dot(q + eps, k_over + over(eps, 1 / ratio))  # I' L / S
    q_over = keep_where(query_mask, over(q, incoming))
    q_over = mean(q_over, query_mask, count_q) * ops.expand_dims(ratio, -1)
    source = dot(k + eps, q_over + eps)  # O'
    if clip is not None:
        source = ops.clip(source, -clip, clip)

    # Of each source its share of the mean: competition / S.
    if competition == "softmax":
        share = softmax(_where(key_mask, source, BELOW))
    elif competition == "sigmoid":
        share = ops.sigmoid(source) / count_k
    else:
        share = ops.ones_like(source) / count_k
    share = _where(key_mask, share, 0.0)
    if allocation == "sigmoid":
        allocated = ops.sigmoid(sink)
    elif allocation == "softmax":
        allocated = count_q * softmax(_where(query_mask, sink / ratio, BELOW))
    else:
        allocated = ops.ones_like(sink)

    summary = ops.matmul(ops.swapaxes(k, 1, 2), v * ops.expand_dims(share, -1))
    outputs = ops.matmul(q, summary) * ops.expand_dims(allocated / incoming, -1)
    return outputs, {
        "incoming": incoming * count_k,
        "outgoing": outgoing * count_q,
        "competition": share * count_k,
        "allocation": allocated,
    }


def _count(mask, x):
    """How many tokens count, at least 1: float `(n, 1)`."""
    real = ops.cast(real_tokens(mask, x), x.dtype)
    return ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)


def _where(mask, x, fill):
    return x if mask is None else ops.where(mask, x, fill)
