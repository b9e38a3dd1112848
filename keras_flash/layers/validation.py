"""Checks of arguments, worded once for every layer."""

from keras import backend
from keras import ops


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
