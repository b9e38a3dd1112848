"""ScaleNorm (FLASH, appendix B.2)."""

from keras import ops

from keras_flash.ops.numerics import at_least_float32


def scale_norm(inputs, scale, epsilon=1e-6):
    """`scale * x / sqrt(mean(x^2) + epsilon)` over the last axis.

    Computed in at least float32 and cast back: in float16 the square of 256
    already overflows.

    Args:
        inputs: tensor `(..., d)`.
        scale: scalar tensor.
        epsilon: float, keeps an all-zero row finite.

    Returns:
        Tensor of the shape and dtype of `inputs`.
    """
    x = at_least_float32(inputs)
    mean_square = ops.mean(ops.square(x), axis=-1, keepdims=True)
    outputs = x * ops.rsqrt(mean_square + epsilon) * scale
    return ops.cast(outputs, inputs.dtype)
