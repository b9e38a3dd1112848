"""Per-feature scale and offset (FLASH, section 2)."""

from keras import ops


def scale_offset(inputs, gamma, beta):
    """`x * gamma + beta`, the cheap transform that makes queries and keys.

    Args:
        inputs: tensor `(..., d)`.
        gamma: tensor `(d,)`.
        beta: tensor `(d,)`.

    Returns:
        Tensor `(..., d)`.
    """
    return ops.add(ops.multiply(inputs, gamma), beta)
