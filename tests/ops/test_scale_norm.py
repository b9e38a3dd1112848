import keras
import numpy as np
import pytest

from keras_flash.ops.scale_norm import scale_norm
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import to_numpy
from tests.reference.scale_norm import scale_norm as loops


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e-4])
def test_equals_loops(scale):
    x = normal(2, 5, 7, scale=scale)
    result = scale_norm(keras.ops.convert_to_tensor(x), 1.7, 1e-6)
    assert error(result, loops(x.astype("float64"), 1.7, 1e-6)) < 1e-6


@pytest.mark.parametrize("value", [0.0, 10.0, 1e4 / 768**0.5, -6e4])
def test_finite_in_float16(value):
    x = keras.ops.full((1, 768), value, dtype="float16")
    result = scale_norm(x, 1.0, 1e-6)
    assert keras.backend.standardize_dtype(result.dtype) == "float16"
    assert error(result, np.full((1, 768), np.sign(value))) < 1e-3 or value == 0
    assert np.isfinite(to_numpy(result)).all()
