"""The one rule on precision that every op shares, and the way out of a tensor."""

from keras import backend
from keras import ops


def at_least_float32(x):
    """Casts `x` up to float32; on TensorFlow a float64 tensor stays as it is.

    (Elsewhere the operations of Keras end at float32.) Sums over positions, squares
    of scores, norms and angles lose too much, or overflow, in half precision, so
    each op casts up first and its caller casts back.
    """
    return ops.cast(x, backend.result_type(x.dtype, "float32"))


def read(x):
    """The value of a tensor as NumPy, or `None` while a graph is traced."""
    if backend.backend() == "torch":
        import torch

        if torch.compiler.is_compiling():  # a read would break the graph in two
            return None
    try:
        return ops.convert_to_numpy(x)
    except (TypeError, NotImplementedError, RuntimeError):
        return None


def clip_index(index, size):
    """Integers held to 0 ... size - 1.

    Not by `ops.clip`: from 0 to 6 the converter of LiteRT makes a relu6 of it, which
    takes no integers.

    Args:
        index: int32 tensor.
        size: int, or an int32 tensor; never a length that is unknown when traced,
            which an exporter would bake in.
    """
    return ops.where(index > 0, ops.minimum(index, size - 1), 0)


def length_of(x):
    """The size of axis 1 as an int, or counted on the tensor where it is unknown."""
    if isinstance(x.shape[1], int):
        return x.shape[1]
    first = ops.reshape(x, (ops.shape(x)[0], ops.shape(x)[1], -1))[:1, :, :1]
    return ops.sum(ops.cast(ops.ones_like(first), "int32"))
