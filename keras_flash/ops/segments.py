"""Which keys a query may see: causality, padding masks, packed segments."""

from keras import ops


def run_numbers(segment_ids):
    """Numbers the runs of equal ids in a row: 0, 0, 1, 1, 1, 2, ...

    A segment is a run of equal ids, so an id that comes back later starts a new
    segment, and run numbers never fall along a row.

    Args:
        segment_ids: int tensor `(b, t)`.

    Returns:
        int32 tensor `(b, t)`.
    """
    changed = ops.not_equal(segment_ids[:, 1:], segment_ids[:, :-1])
    first = ops.zeros_like(segment_ids[:, :1], dtype="int32")
    steps = ops.concatenate([first, ops.cast(changed, "int32")], axis=1)
    return ops.cumsum(steps, axis=1)


def visible_keys(
    query_positions=None,
    key_positions=None,
    key_mask=None,
    query_runs=None,
    key_runs=None,
):
    """ANDs what is given into one boolean tensor.

    Args:
        query_positions: int tensor `(t,)`; with `key_positions`, a query sees no
            later key.
        key_positions: int tensor `(s,)`.
        key_mask: boolean tensor `(..., s)`, True = real token.
        query_runs: int tensor `(..., t)`; with `key_runs`, a query sees keys of
            its own segment only.
        key_runs: int tensor `(..., s)`.

    Returns:
        Boolean tensor that broadcasts to `(..., t, s)`, or `None` where nothing
        is hidden.
    """
    visible = None
    if query_positions is not None:
        visible = ops.expand_dims(key_positions, 0) <= ops.expand_dims(
            query_positions, 1
        )
    if key_mask is not None:
        visible = _and(visible, ops.expand_dims(key_mask, -2))
    if query_runs is not None:
        same = ops.equal(ops.expand_dims(query_runs, -1), ops.expand_dims(key_runs, -2))
        visible = _and(visible, same)
    return visible


def keep_where(mask, x):
    """`x` `(..., t, d)` with zeros where the boolean `mask` `(..., t)` is False.

    Without a mask `x` itself.
    """
    if mask is None:
        return x
    return ops.where(ops.expand_dims(mask, -1), x, 0.0)


def real_tokens(mask, x):
    """The boolean mask `(b, t)` of `x` `(b, t, d)`, all True where it is `None`."""
    return ops.ones_like(x[:, :, 0], dtype="bool") if mask is None else mask


def _and(first, second):
    return second if first is None else ops.logical_and(first, second)
