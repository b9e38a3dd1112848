"""Per-feature scale and offset (FLASH, section 2)."""

from keras import ops

from keras_flash.ops.numerics import at_least_float32


def scale_offset(inputs, gamma, beta):
    """`x * gamma + beta`, the cheap transform that makes queries and keys.

    Args:
        inputs: tensor `(..., d)`.
        gamma: tensor `(d,)`.
        beta: tensor `(d,)`.

    Returns:
        Tensor `(..., d)` of the dtype of `inputs`, rounded once.
    """
    outputs = at_least_float32(inputs) * at_least_float32(gamma)
    return ops.cast(outputs + at_least_float32(beta), inputs.dtype)
