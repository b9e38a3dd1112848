"""ScaleNorm (FLASH, appendix B.2)."""

import math

from keras import ops

from keras_flash.ops.numerics import at_least_float32


def scale_norm(inputs, scale, epsilon=1e-6):
    """`scale * x / sqrt(mean(x^2) + epsilon)` over the last axis.

    Computed in at least float32 and cast back, on the row over its largest entry: in
    float16 the square of 256 already overflows, and a phone may compute in that.

    Args:
        inputs: tensor `(..., d)`.
        scale: scalar tensor.
        epsilon: float, keeps an all-zero row finite.

    Returns:
        Tensor of the shape and dtype of `inputs`.
    """
    x = at_least_float32(inputs)
    smallest = math.sqrt(epsilon)
    size = ops.maximum(ops.amax(ops.abs(x), axis=-1, keepdims=True), smallest)
    size = ops.stop_gradient(size)  # nothing depends on it
    x = x / size
    mean_square = ops.mean(ops.square(x), axis=-1, keepdims=True)
    outputs = x * ops.rsqrt(mean_square + ops.square(smallest / size)) * scale
    return ops.cast(outputs, inputs.dtype)
