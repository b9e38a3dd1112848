"""What the chunked form promises beyond right numbers."""

import keras
import numpy as np
import pytest

from keras_flash.ops.mixed_chunk_attention import mixed_chunk_attention
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import to_numpy


def global_part(x, causal, normalization, chunk_size=2, **others):
    """Queries and keys of one: the sum, or mean, of the values that t may see."""
    values = keras.ops.convert_to_tensor(np.array(x, "float32")[None, :, None])
    ones = keras.ops.ones_like(values)
    outputs = mixed_chunk_attention(
        None,
        (ones, ones),
        values,
        chunk_size,
        causal=causal,
        global_normalization=normalization,
        **others,
    )
    return to_numpy(outputs)[0, :, 0].tolist()


def test_literal_sums_over_earlier_chunks():
    x = [1, 2, 3, 4, 5]
    assert global_part(x, True, "sum") == [0, 0, 3, 3, 10]
    assert global_part(x, True, "chunk") == [0, 0, 1.5, 1.5, 5]
    assert global_part(x, True, "mean") == [0, 0, 1.5, 1.5, 2.5]
    assert global_part(x, False, "sum") == [15] * 5
    assert global_part(x, False, "mean") == [3] * 5


def test_literal_sums_inside_segments():
    x = [1, 2, 3, 4, 5, 6, 7]
    ids = keras.ops.convert_to_tensor([[4, 4, 4, 4, 4, 1, 1]])
    assert global_part(x, True, "sum", segment_ids=ids) == [0, 0, 3, 3, 10, 0, 6]
    assert global_part(x, True, "mean", segment_ids=ids) == [0, 0, 1.5, 1.5, 2.5, 0, 6]
    sums = [15] * 5 + [13] * 2
    assert global_part(x, False, "sum", segment_ids=ids) == sums


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_mean_does_not_grow_with_the_length(causal):
    """With "mean" the scale is the same after 1, 8 and 31 chunks."""
    ends = [global_part([1.0] * n, causal, "mean", 4)[-1] for n in (8, 36, 128)]
    assert error(ends, [1.0, 1.0, 1.0]) < 1e-6


@pytest.mark.skipif(BACKEND != "jax", reason="reads the program that JAX traced")
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_work_is_linear(causal, packed):
    import jax

    def traced(length):
        shape = jax.ShapeDtypeStruct((1, length, 8), "float32")
        ids = jax.ShapeDtypeStruct((1, length), "int32") if packed else None

        def op(views, values, ids):
            return mixed_chunk_attention(
                views[:2], views[2:], values, 16, causal=causal, segment_ids=ids
            )

        program = jax.make_jaxpr(op)((shape,) * 4, shape, ids)
        sizes = [np.prod(v.aval.shape) for e in program.eqns for v in e.outvars]
        return max(sizes), sum(sizes)

    largest, total = traced(8192)
    twice_largest, twice_total = traced(16_384)
    assert twice_largest == 2 * largest
    assert twice_total < 2.1 * total
