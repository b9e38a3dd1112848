"""Checks of arguments, worded once for every layer."""

import numpy as np
from keras import backend
from keras import ops

from keras_flash.ops.numerics import read


def check_positive_int(name, value, alternative=""):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"`{name}` must be {alternative}a positive integer. "
            f"Received: {name}={value!r}"
        )


def check_positive(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(
            f"`{name}` must be a positive number. Received: {name}={value!r}"
        )


def check_rate(name, value):
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value < 1
    ):
        raise ValueError(
            f"`{name}` must be a number in [0, 1). Received: {name}={value!r}"
        )


def check_share(name, value):
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= 1
    ):
        raise ValueError(
            f"`{name}` must be a number from 0 to 1. Received: {name}={value!r}"
        )


def check_bool(name, value):
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")


def check_choice(name, value, choices):
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(
            f"`{name}` must be one of {listed}. Received: {name}={value!r}"
        )


def check_unset(name, value, default, reason):
    """An argument that another choice makes meaningless must keep its default."""
    if value != default:
        raise ValueError(
            f"`{name}` has no meaning {reason}; leave it at {default!r}. "
            f"Received: {name}={value!r}"
        )


def check_sequence_shape(name, shape):
    """`(batch, length, features)` with a token and known features."""
    if len(shape) != 3 or shape[-1] is None:
        raise ValueError(
            f"`{name}` must have shape (batch, length, features) with known "
            f"features. Received: {name}.shape={tuple(shape)}"
        )
    if isinstance(shape[1], int) and shape[1] == 0:
        raise ValueError(
            f"`{name}` must have at least one token. "
            f"Received: {name}.shape={tuple(shape)}"
        )


def check_positions(name, value, sequence):
    """A mask or segment ids: `(batch, length)` of the sequence, or `None`."""
    if value is None:
        return
    shape, wanted = tuple(value.shape), tuple(sequence.shape[:2])
    clash = len(shape) != 2 or any(
        given is not None and size is not None and given != size
        for given, size in zip(shape, wanted)
    )
    if clash:
        raise ValueError(
            f"`{name}` must have shape (batch, length), here {wanted}. "
            f"Received: {name}.shape={shape}"
        )


def check_segment_ids(segment_ids, sequence):
    check_positions("segment_ids", segment_ids, sequence)
    if segment_ids is None:
        return
    dtype = backend.standardize_dtype(segment_ids.dtype)
    if not dtype.startswith(("int", "uint")):
        raise ValueError(
            f"`segment_ids` must be integers. Received: segment_ids.dtype={dtype}"
        )


def merge_masks(*masks):
    """ANDs the masks that are given, of any dtype; `None` where none is."""
    merged = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            merged = mask if merged is None else ops.logical_and(merged, mask)
    return merged


def pass_on_mask(inputs, previous_mask):
    """The mask of a layer's outputs: the one it was given and that of its inputs."""
    return merge_masks(previous_mask, getattr(inputs, "_keras_mask", None))


def check_state(state, spec, batch_size):
    """A streaming state: the leaves of `spec`, for the batch of the inputs.

    Returns:
        The state as tensors.
    """
    source = "`state` must be what `get_initial_state` or `stream` of this layer gave"
    if not isinstance(state, dict) or set(state) != set(spec):
        given = sorted(state) if isinstance(state, dict) else state
        raise ValueError(
            f"{source}, a dict of {', '.join(sorted(spec))}. Received: state={given}"
        )
    checked = {}
    for name, (shape, dtype) in spec.items():
        leaf = ops.convert_to_tensor(state[name])
        given, wanted = tuple(leaf.shape), (batch_size, *shape)
        received = f"Received: state[{name!r}].shape={given}"
        if len(given) != len(wanted) or given[1:] != wanted[1:]:
            raise ValueError(f"{source}, here with shape {wanted}. {received}")
        if None not in (given[0], batch_size) and given[0] != batch_size:
            raise ValueError(
                f"`state` must have the batch size of `inputs`, {batch_size}. "
                f"{received}"
            )
        found = backend.standardize_dtype(leaf.dtype)
        if found != dtype:
            raise ValueError(
                f"{source} under this dtype policy, here {dtype}. "
                f"Received: state[{name!r}].dtype={found}"
            )
        checked[name] = leaf
    return checked


def check_length(length, inputs):
    """How many tokens of a piece count: an int, or a scalar int tensor."""
    if length is None:
        return ops.shape(inputs)[1]
    is_tensor = ops.is_tensor(length)
    if is_tensor or hasattr(length, "dtype"):
        dtype, rank = backend.standardize_dtype(length.dtype), len(length.shape)
    else:
        dtype, rank = type(length).__name__, 0
    value = read(length) if is_tensor else length
    size = inputs.shape[1]
    if (
        rank
        or not dtype.startswith(("int", "uint"))
        or (value is not None and value < 0)
        or (None not in (value, size) and value > size)
    ):
        raise ValueError(
            "`length` must be an integer, or a scalar tensor of one, from 0 to the "
            f"length of `inputs`, {size}. Received: length={length}"
        )
    return ops.cast(length, "int32") if is_tensor else int(length)


def check_ids(name, ids, size):
    """Integers from 0 to below `size`: tokens, classes, actions, time steps.

    Args:
        name: of the argument.
        ids: int, array or tensor. A tensor that cannot be read passes.
        size: int, how many there are.
    """
    values = read(ids) if ops.is_tensor(ids) else np.asarray(ids)
    if values is None or not values.size:
        return
    if not np.issubdtype(values.dtype, np.integer):
        found = f"{name} of dtype {values.dtype}" if values.ndim else f"{name}={ids!r}"
    elif values.min() < 0 or values.max() >= size:
        found = f"{name} from {values.min()} to {values.max()}"
        found = found if values.ndim else f"{name}={ids!r}"
    else:
        return
    raise ValueError(
        f"`{name}` must be integers from 0 to {size - 1}. Received: {found}"
    )
