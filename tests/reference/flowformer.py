"""Residual blocks and whole Flowformer models from their weights, in float64."""

import math

import numpy as np

from tests.reference.layers import dense
from tests.reference.layers import flow_attention_layer

gelu = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))


def part(weights, name):
    """The weights whose path starts with `name`, without it."""
    return {
        path.removeprefix(f"{name}/"): value
        for path, value in weights.items()
        if path.startswith(f"{name}/")
    }


def layer_norm(x, weights, name):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    x = (x - mean) / np.sqrt(variance + 1e-6)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def block(x, weights, name, mask=None, norm_first=True, activation=gelu, **options):
    """`x + branch(norm(x))`, or `norm(x + branch(x))`, for each of two branches."""

    def attend(y):
        own = part(weights, f"{name}_attention")
        return flow_attention_layer(y, own, mask, source_mask=mask, **options)

    def feed_forward(y):
        y = activation(dense(y, weights, f"{name}_intermediate_dense"))
        y = dense(y, weights, f"{name}_output_dense")
        return y * weights.get(f"{name}_layer_scale/gamma", 1.0)

    for kind, branch in (("attention", attend), ("feed_forward", feed_forward)):
        norm = f"{name}_{kind}_norm"
        if norm_first:
            x = x + branch(layer_norm(x, weights, norm))
        else:
            x = layer_norm(x + branch(x), weights, norm)
    return x
