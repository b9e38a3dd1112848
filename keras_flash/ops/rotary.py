"""Rotary position embedding that stays exact at a million positions.

The angle of position p at feature pair i is `p * 10000^(-2i/d)`. In float32 that
product has lost four digits at position 16,384. Here angles are counted in
1/2^32 of a turn, in an int32 that wraps around as angles do, so a sum of steps
is exact. One rounded step a position would still drift from the equation at
30,000 positions, so a position is split into `4096 * high + low`, each part with
a step of its own rounding: both errors stay under 4e-6 radians.
"""

import math

from keras import ops

from keras_flash.ops.numerics import at_least_float32

BASE = 10_000.0
SPLIT = 4096  # positions in one high step
TURN = 2**32  # int32 units in one full turn


def _step_of(count, dim):
    """The int32 angle, one for each feature pair, that `count` positions turn."""
    steps = []
    for i in range(0, dim, 2):  # plain numbers: torch.compile stops at NumPy's
        units = round(count * BASE ** (-i / dim) / (2 * math.pi) * TURN)
        steps.append((units + TURN // 2) % TURN - TURN // 2)  # as int32 wraps
    return ops.convert_to_tensor(steps, dtype="int32")


def rotary_cos_sin(positions, dim):
    """Cosine and sine of `position * 10000^(-2i/dim)`.

    Args:
        positions: int tensor of any shape; negative positions are allowed.
        dim: int, even: the number of features that will be rotated.

    Returns:
        Two float32 tensors of shape `positions.shape + (dim / 2,)`.
    """
    positions = ops.expand_dims(ops.cast(positions, "int32"), -1)
    high = ops.floor_divide(positions, SPLIT)
    low = positions - high * SPLIT
    phase = high * _step_of(SPLIT, dim) + low * _step_of(1, dim)
    angle = ops.cast(phase, "float32") * (2 * math.pi / TURN)
    return ops.cos(angle), ops.sin(angle)


def rotation(positions, dim):
    """What `rotate` multiplies by, made once for all that is rotated.

    Args:
        positions: int tensor of any shape.
        dim: int, even: the number of features that will be rotated.

    Returns:
        Two float32 tensors of shape `positions.shape + (dim,)`: `[cos, cos]`, and
        `[-sin, sin]` for the features with their halves swapped.
    """
    cos, sin = rotary_cos_sin(positions, dim)
    return ops.concatenate([cos, cos], axis=-1), ops.concatenate([-sin, sin], axis=-1)


def rotate(inputs, cos, sin):
    """Turns each pair of features (i, i + d/2) by its angle.

    Args:
        inputs: tensor `(..., t, d)`.
        cos: tensor `(..., t, d)` from `rotation`.
        sin: the same for the sine.

    Returns:
        Tensor `(..., t, d)` in at least float32, which is what the ops that
        take queries and keys compute in.
    """
    inputs = at_least_float32(inputs)
    cos, sin = ops.cast(cos, inputs.dtype), ops.cast(sin, inputs.dtype)
    first, second = ops.split(inputs, 2, axis=-1)
    return inputs * cos + ops.concatenate([second, first], axis=-1) * sin
