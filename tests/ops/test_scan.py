import keras
import numpy as np
import pytest

from keras_flash.ops import scan
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import to_numpy

IDENTITY = (-1, 0.0)


def combine(earlier, later):
    """Sums that start again wherever the key changes."""
    same = keras.ops.expand_dims(keras.ops.equal(earlier[0], later[0]), -1)
    return later[0], later[1] + keras.ops.where(same, earlier[1], 0.0)


def loops(keys, x):
    totals = np.array(x, "float64")
    for b in range(x.shape[0]):
        for n in range(1, x.shape[1]):
            if keys[b, n] == keys[b, n - 1]:
                totals[b, n] += totals[b, n - 1]
    return totals


def problem(length):
    keys = np.cumsum(np.random.default_rng(length).random((2, length)) < 0.1, axis=1)
    return keys.astype("int32"), normal(2, length, 3)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 65, 600])
def test_running_sums_with_resets(length):
    keys, x = problem(length)
    tensors = tuple(map(keras.ops.convert_to_tensor, (keys, x)))
    _, totals = scan.inclusive_scan(combine, tensors, IDENTITY)
    assert error(totals, loops(keys, x)) < 1e-6
    before = to_numpy(scan.exclusive((totals,), (0.0,))[0])
    assert (before[:, 0] == 0).all()
    assert (before[:, 1:] == to_numpy(totals)[:, :-1]).all()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow traces so")
@pytest.mark.parametrize("length", [1, 8, 9, 600])
def test_unknown_length(length):
    import tensorflow as tf

    signature = [tf.TensorSpec((None, None), "int32"), tf.TensorSpec((None, None, 3))]

    @tf.function(input_signature=signature)
    def totals(keys, x):
        return scan.inclusive_scan(combine, (keys, x), IDENTITY)[1]

    keys, x = problem(length)
    assert error(totals(keys, x), loops(keys, x)) < 1e-6
