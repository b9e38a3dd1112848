"""Running totals along axis 1 for any associative rule, in levels of blocks.

`keras.ops.cumsum` serves plain sums. The carry with resets at segment borders and
the running log-sum-exp need a rule of their own; `keras.ops.associative_scan` and
`scan` do not survive XLA and LiteRT on every backend, so this one is made of
slices and concatenations alone.
"""

from keras import ops

BLOCK = 8
MAX_LEVELS = 11  # 8 ** 11 elements are more than an int32 can count


def inclusive_scan(combine, elements, identity, levels=MAX_LEVELS, scan_block=None):
    """Running totals: entry n holds `elements` 0 to n combined in order.

    Args:
        combine: function of two tuples, the earlier and the later, that returns
            a tuple of the same form; associative.
        elements: tuple of tensors `(b, n, ...)`; the length n may be unknown.
        identity: tuple of numbers that `combine` leaves the other side alone
            with, when they come first.
        levels: int, how many levels of blocks there may be, for a length that is
            unknown; what is left is one block.
        scan_block: function of a tuple like `elements`, `(b, n)` or `(b, m, n)`
            with any n, that returns the totals along the last axis in fewer
            operations than `combine` does. Only for elements without more axes.

    Returns:
        Tuple of tensors of the shapes of `elements`.
    """

    def scan(elements, axis):
        if scan_block is not None:
            return scan_block(*elements)
        return _scan_block(combine, elements, identity, axis)

    length = elements[0].shape[1]
    if levels == 1 or (isinstance(length, int) and length <= BLOCK):
        return scan(elements, axis=1)
    length = ops.shape(elements[0])[1]
    num_blocks = (length + BLOCK - 1) // BLOCK
    blocks = tuple(
        split_axis(pad_axis(x, num_blocks * BLOCK - length, fill), num_blocks, BLOCK)
        for x, fill in zip(elements, identity)
    )
    inside = scan(blocks, axis=2)
    totals = tuple(x[:, :, -1] for x in inside)
    totals = inclusive_scan(combine, totals, identity, levels - 1, scan_block)
    before = exclusive(totals, identity)
    combined = combine(tuple(ops.expand_dims(x, 2) for x in before), inside)
    return tuple(merge_axis(x)[:, :length] for x in combined)


def exclusive(totals, identity):
    """Shifts running totals by one, so that entry n leaves out its own."""
    return tuple(_shift(x, 1, fill, axis=1) for x, fill in zip(totals, identity))


def _scan_block(combine, elements, identity, axis):
    """Totals over a short axis, in log2 shifted steps."""
    size = elements[0].shape[axis]
    size = size if isinstance(size, int) else BLOCK
    step = 1
    while step < size:
        earlier = tuple(
            _shift(x, step, fill, axis) for x, fill in zip(elements, identity)
        )
        elements = combine(earlier, elements)
        step *= 2
    return elements


def _shift(x, step, fill, axis):
    """Moves entries `step` places on; `fill` comes in at the front."""
    shape = ops.shape(x)
    front = _filled((*shape[:axis], step, *shape[axis + 1 :]), fill, x.dtype)
    # Joined and then cut, which keeps a symbolic length what it was.
    moved = ops.concatenate([front, x], axis=axis)
    length = shape[axis]
    return moved[:, :length] if axis == 1 else moved[:, :, :length]


def _filled(shape, fill, dtype):
    """`ops.full`, of which jax2onnx makes nothing where a size is unknown."""
    one = ops.full([1] * len(shape), fill, dtype)
    return ops.broadcast_to(one, shape)


def pad_axis(x, amount, fill=0):
    """Appends `amount` entries of value `fill` to axis 1.

    Not by `ops.pad`, which makes an object with a name of its own at each call;
    torch.compile stops there.
    """
    if isinstance(amount, int) and amount == 0:
        return x
    shape = ops.shape(x)
    tail = _filled((shape[0], amount, *shape[2:]), fill, x.dtype)
    return ops.concatenate([x, tail], axis=1)


def split_axis(x, count, size):
    """`(b, count * size, ...)` to `(b, count, size, ...)`."""
    return ops.reshape(x, (-1, count, size) + tuple(x.shape[2:]))


def merge_axis(x):
    """`(b, count, size, ...)` to `(b, count * size, ...)`."""
    shape = ops.shape(x)
    return ops.reshape(x, (-1, shape[1] * shape[2]) + tuple(x.shape[3:]))
