"""Where the tokens of a piece go: rows of slots, filled from a cache and a piece.

A row of the batch stands at a position of its own, so slots are counted by row:
the index of a slot is the number of the new token that belongs there. It is
negative where an earlier token stands, and `length` or more where none has come.

b batch, t query position in the piece, s slot, f feature.
"""

from keras import ops

from keras_flash.ops.numerics import clip_index
from keras_flash.ops.numerics import length_of
from keras_flash.ops.scan import pad_axis


def slot_index(num_slots, start):
    """The number of the new token that belongs in each slot.

    Args:
        num_slots: int, s.
        start: int32 `(b,)`, the slot of the first new token.

    Returns:
        int32 `(b, s)`.
    """
    slots = ops.arange(0, num_slots, dtype="int32")
    return ops.expand_dims(slots, 0) - ops.expand_dims(start, 1)


def take_rows(x, index):
    """Entry `index[b, s]` of each row: `(b, t, f)` by `(b, s)` to `(b, s, f)`.

    An index outside the row takes the nearest entry.
    """
    count = length_of(x)
    if isinstance(count, int) and count == 1:
        return x  # broadcasts
    index = clip_index(index, count)
    # Counted, since jax2onnx makes no range of a size that is unknown.
    ones = ops.cast(ops.ones_like(x[:, 0, :1]), "int32")
    rows = (ops.cumsum(ones, axis=0) - 1) * count  # (b, 1)
    flat = ops.reshape(x, (-1, x.shape[2]))
    return ops.take(flat, index + rows, axis=0)


def lay_out(cache, x, index, length):
    """Slots with what the cache holds, then the piece, then zeros.

    Args:
        cache: `(b, c, f)`, c at most s.
        x: `(b, t, f)`, the piece.
        index: int32 `(b, s)` from `slot_index`.
        length: how many tokens of the piece count.

    Returns:
        `(b, s, f)` in the dtype of `x`.
    """
    index = ops.expand_dims(index, -1)
    cache = pad_axis(
        ops.cast(cache, x.dtype), ops.shape(index)[1] - ops.shape(cache)[1]
    )
    new = take_rows(x, ops.squeeze(index, -1))
    return ops.where(index < 0, cache, ops.where(index < length, new, 0.0))


def pick(x, index):
    """Entry `index[b]` of axis 1: `(b, n, ...)` to `(b, ...)`."""
    places = ops.arange(0, ops.shape(x)[1], dtype="int32")
    hit = ops.equal(ops.expand_dims(places, 0), ops.expand_dims(index, 1))
    while len(hit.shape) < len(x.shape):
        hit = ops.expand_dims(hit, -1)
    return ops.sum(ops.where(hit, x, 0), axis=1)
