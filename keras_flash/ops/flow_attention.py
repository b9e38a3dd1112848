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

from keras_flash.ops.activations import LARGE
from keras_flash.ops.activations import softmax
from keras_flash.ops.causal_flow import causal_flow
from keras_flash.ops.causal_flow import dot
from keras_flash.ops.causal_flow import initial_flow
from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.segments import keep_where
from keras_flash.ops.segments import real_tokens

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
    def total(x):
        return ops.sum(x, axis=1, keepdims=True)

    is_query, is_key = real_tokens(query_mask, q), real_tokens(key_mask, k)
    count_q = total(ops.cast(is_query, q.dtype))  # (n, 1), L
    count_k = total(ops.cast(is_key, q.dtype))  # (n, 1), S
    incoming = dot(q + eps, total(k) + eps)  # (n, t)
    outgoing = dot(k + eps, total(q_sum) + eps)  # (n, s)
    sink = dot(q + eps, total(k / ops.expand_dims(outgoing, -1)) + eps)
    q_over = keep_where(query_mask, q / ops.expand_dims(incoming, -1))
    source = dot(k + eps, total(q_over) + eps)
    if clip is not None:
        source = ops.clip(source, -clip, clip)

    if competition == "softmax":
        competing = count_k * softmax(ops.where(is_key, source, -LARGE))
    elif competition == "sigmoid":
        competing = ops.sigmoid(source)
    else:
        competing = ops.ones_like(source)
    competing = ops.where(is_key, competing, 0.0)
    if allocation == "sigmoid":
        allocated = ops.sigmoid(sink * count_q / ops.maximum(count_k, 1.0))
    elif allocation == "softmax":
        allocated = count_q * softmax(ops.where(is_query, sink, -LARGE))
    else:
        allocated = ops.ones_like(sink)

    summary = ops.matmul(ops.swapaxes(k, 1, 2), v * ops.expand_dims(competing, -1))
    outputs = ops.matmul(q, summary) * ops.expand_dims(allocated / incoming, -1)
    return outputs, {
        "incoming": incoming,
        "outgoing": outgoing,
        "competition": competing,
        "allocation": allocated,
    }
