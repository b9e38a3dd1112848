"""Whole layers from their weights: dense projections around the loops."""

import numpy as np

from tests.reference import relative_position_bias as bias_loops
from tests.reference.activations import silu
from tests.reference.flow_attention import flow_attention
from tests.reference.gated_attention_unit import gated_attention
from tests.reference.mixed_chunk_attention import mixed_chunk_attention
from tests.reference.rotary import rotate
from tests.reference.scale_offset import scale_offset


def dense(x, weights, name):
    y = np.asarray(x, "float64") @ weights[f"{name}/kernel"]
    return y + weights[f"{name}/bias"] if f"{name}/bias" in weights else y


def position_bias(kind, weights, bidirectional):
    """A function of the distance, or None."""
    if kind == "toeplitz":
        table = weights["position_bias/table"]
        return lambda distance: bias_loops.toeplitz(table, distance, bidirectional)
    if kind == "t5":
        table = weights["position_bias/table"]
        return lambda distance: bias_loops.t5(table, distance, bidirectional)
    if kind == "rotary":
        vectors = [weights[f"position_bias/{name}_vector"] for name in ("query", "key")]
        return lambda distance: bias_loops.rotary(*vectors, distance, bidirectional)
    return None


def gated_layer(x, weights, options, attend):
    act = np.vectorize(silu, otypes=["float64"])
    u, v, z = [
        act(dense(x, weights, f"{name}_dense")) for name in ("gate", "value", "base")
    ]
    gamma, beta = weights["scale_offset/gamma"], weights["scale_offset/beta"]
    views = [scale_offset(z, gamma[i], beta[i]) for i in range(len(gamma))]
    if options.get("use_rotary", True):
        views = [rotate(view) for view in views]
    return dense(u * attend(views, v), weights, "output_dense")


def gated_attention_unit(x, weights, mask=None, segment_ids=None, **options):
    causal = options.get("causal", False)
    kind = options.get("relative_position_bias", "auto")
    bias = position_bias({"auto": "rotary"}.get(kind, kind), weights, not causal)

    def attend(views, v):
        return gated_attention(
            *views,
            v,
            bias,
            mask,
            segment_ids,
            causal,
            options.get("attention_activation", "relu_squared"),
            options.get("normalization_length", "visible"),
        )

    return gated_layer(x, weights, options, attend)


def mixed_chunk_attention_layer(x, weights, mask=None, segment_ids=None, **options):
    causal, branches = options.get("causal", False), options.get("branches", "both")
    kind = options.get("relative_position_bias", "auto")
    kind = None if branches == "global" else kind
    bias = position_bias({"auto": "toeplitz"}.get(kind, kind), weights, not causal)

    def attend(views, v):
        return mixed_chunk_attention(
            None if branches == "global" else views[:2],
            None if branches == "local" else views[-2:],
            v,
            options["chunk_size"],
            bias,
            mask,
            segment_ids,
            causal,
            options.get("attention_activation", "relu_squared"),
            options.get("scale_scores", True),
            options.get("global_normalization", "mean"),
        )

    return gated_layer(x, weights, options, attend)


def flow_attention_layer(
    x, weights, mask=None, source=None, source_mask=None, **options
):
    source = x if source is None else source
    num_heads = options["num_heads"]
    heads = []
    for name, inputs in (("query", x), ("key", source), ("value", source)):
        y = dense(inputs, weights, f"{name}_dense")
        heads.append(y.reshape(*y.shape[:2], num_heads, -1).transpose(0, 2, 1, 3))
    settings = {
        name: options[name]
        for name in ("causal", "feature_map", "competition", "allocation")
        + ("competition_clip", "epsilon")
        if name in options
    }
    y, _ = flow_attention(*heads, mask, source_mask, **settings)
    y = y.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    return dense(y, weights, "output_dense")
