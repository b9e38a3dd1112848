"""From attention scores to attention weights."""

import math

import keras
from keras import ops

LARGE = 1e30  # stands for infinity where a true one would turn gradients to NaN


def relu_squared(x):
    """`max(x, 0)^2`, the kernel of FLASH (section 2, eq. 5)."""
    return ops.square(ops.relu(x))


def laplace(x):
    """`(1 + erf((x - mu) / (sigma sqrt 2))) / 2`, mu^2 = 1/2, sigma^2 = 1/(4 pi).

    A bounded kernel with the value and the slope of `relu_squared` at sqrt(1/2);
    unlike it, it has no zone where the gradient is zero.
    """
    mean, deviation = math.sqrt(0.5), math.sqrt(0.25 / math.pi)
    z = (x - mean) / deviation
    # gelu(z) / z, which is this very function: LiteRT has gelu built in, but no erf.
    near_zero = ops.abs(z) < 1e-3
    safe = ops.where(near_zero, 1.0, z)
    slope = 1.0 / math.sqrt(2.0 * math.pi)
    return ops.where(
        near_zero, 0.5 + slope * z, ops.gelu(safe, approximate=False) / safe
    )


KERNELS = {"relu_squared": relu_squared, "laplace": laplace}


def get(identifier):
    """The kernel of a name: one of ours, or what Keras knows as an activation."""
    if isinstance(identifier, str) and identifier in KERNELS:
        return KERNELS[identifier]
    return keras.activations.get(identifier)


def serialize(kernel):
    """The way back from a kernel to its name, or to a Keras config."""
    names = {function: name for name, function in KERNELS.items()}
    if kernel == "softmax":
        return kernel
    return names.get(kernel) or keras.activations.serialize(kernel)


def softmax(x):
    """Softmax over the last axis; over one entry it is 1, and Keras would warn."""
    is_one = isinstance(x.shape[-1], int) and x.shape[-1] == 1
    return ops.ones_like(x) if is_one else ops.softmax(x, axis=-1)


def attention_weights(scores, visible, activation):
    """Turns scores into weights that are exactly zero on keys not visible.

    Args:
        scores: float tensor `(..., t, s)`.
        visible: boolean tensor that broadcasts to `scores`, or `None` where
            every query sees every key.
        activation: `"softmax"`, or a function applied to each score.

    Returns:
        Tensor `(..., t, s)`. A row with no visible key is all zeros, and its
        gradient is finite.
    """
    if activation == "softmax":
        if visible is None:
            return softmax(scores)
        weights = softmax(ops.where(visible, scores, -LARGE))
        return ops.where(visible, weights, 0.0)
    if visible is None:
        return activation(scores)
    # The score is masked before the kernel too, so that a kernel which
    # overflows on a hidden score sends no NaN back.
    weights = activation(ops.where(visible, scores, 0.0))
    if activation is relu_squared:  # relu_squared(0) is 0 already
        return weights
    return ops.where(visible, weights, 0.0)
