"""The one rule on precision that every op shares."""

from keras import backend
from keras import ops


def at_least_float32(x):
    """Casts `x` up to float32; a float64 tensor stays as it is.

    Sums over positions, squares of scores, norms and angles lose too much, or
    overflow, in half precision, so each op casts up first and its caller casts
    back.
    """
    return ops.cast(x, backend.result_type(x.dtype, "float32"))
