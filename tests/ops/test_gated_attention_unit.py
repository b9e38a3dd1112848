"""What the block form promises beyond right numbers."""

import keras
import numpy as np
import pytest

from keras_flash.ops.activations import relu_squared
from keras_flash.ops.gated_attention_unit import gated_attention
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import normal
from tests.reference.gated_attention_unit import gated_attention as loops

LENGTH = 300  # three blocks of rows


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("activation", ["relu_squared", "softmax"])
def test_several_blocks_equal_loops(causal, activation):
    q, k = normal(1, LENGTH, 4), normal(1, LENGTH, 4, seed=1)
    v, bias = normal(1, LENGTH, 3, seed=2), normal(2 * LENGTH - 1, seed=3)
    ids = np.repeat([[0, 1, 2]], 100, axis=1)
    mask = np.random.default_rng(4).random((1, LENGTH)) < 0.8
    result = gated_attention(
        *map(keras.ops.convert_to_tensor, (q, k, v, bias, mask, ids)),
        causal=causal,
        activation=relu_squared if activation == "relu_squared" else activation,
    )
    wanted = loops(
        *(x.astype("float64") for x in (q, k, v)),
        lambda distance: bias[distance + LENGTH - 1],
        mask,
        ids,
        causal,
        activation,
    )
    assert error(result, wanted) < 1e-5


@pytest.mark.skipif(BACKEND != "jax", reason="reads the program that JAX traced")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_holds_no_full_matrix_and_skips_the_hidden_half(causal):
    import jax

    length, width = 2048, 4

    def op(q, k, v):
        return gated_attention(q, k, v, causal=causal, activation=relu_squared)

    shapes = [jax.ShapeDtypeStruct((1, length, width), "float32")] * 3
    equations = jax.make_jaxpr(op)(*shapes).eqns
    sizes = [np.prod(v.aval.shape) for e in equations for v in e.outvars]
    assert max(sizes) <= length * length / 16
    scores = sum(
        np.prod(e.outvars[0].aval.shape)
        for e in equations
        if e.primitive.name == "dot_general" and e.outvars[0].aval.shape[-1] != width
    )
    share = scores / length**2
    assert share == (17 / 32 if causal else 1)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow traces so")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_unknown_length(causal):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, None, 4))] * 3)
    def op(q, k, v):
        return gated_attention(q, k, v, causal=causal, activation=relu_squared)

    for length in (1, 5, 300):
        q, k, v = (normal(2, length, 4, seed=seed) for seed in range(3))
        known = gated_attention(
            *map(keras.ops.convert_to_tensor, (q, k, v)),
            causal=causal,
            activation=relu_squared,
        )
        assert error(op(q, k, v), keras.ops.convert_to_numpy(known)) < 1e-6
