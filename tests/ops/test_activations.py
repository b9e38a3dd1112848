import math

import keras
import numpy as np
import pytest

from keras_flash.ops import activations
from tests.helpers import error
from tests.helpers import to_numpy
from tests.reference.activations import KERNELS


@pytest.mark.parametrize("name", ["relu_squared", "laplace", "sigmoid"])
def test_kernel_equals_loops(name):
    x = np.linspace(-3, 3, 41).astype("float32")
    result = activations.get(name)(keras.ops.convert_to_tensor(x))
    assert error(result, [KERNELS[name](float(value)) for value in x]) < 1e-6


def test_laplace_touches_relu_squared_at_its_mean():
    """Both have value 1/2 and slope sqrt 2 at sqrt(1/2)."""
    mean, step = math.sqrt(0.5), 1e-6
    for kernel in (KERNELS["laplace"], KERNELS["relu_squared"]):
        assert abs(kernel(mean) - 0.5) < 1e-9
        slope = (kernel(mean + step) - kernel(mean - step)) / (2 * step)
        assert abs(slope - math.sqrt(2)) < 1e-6


@pytest.mark.parametrize("name", ["relu_squared", "laplace", "softmax"])
def test_hidden_scores_have_no_weight(name):
    scores = keras.ops.convert_to_tensor([[5.0, 1e30, -2.0], [1.0, 2.0, 3.0]])
    visible = keras.ops.convert_to_tensor([[True, False, True], [False, False, False]])
    kernel = name if name == "softmax" else activations.get(name)
    weights = to_numpy(activations.attention_weights(scores, visible, kernel))
    assert np.isfinite(weights).all()
    assert weights[0, 1] == 0
    assert weights[0, 0] > 0.9
    assert (weights[1] == 0).all()
