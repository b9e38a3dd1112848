import keras

from keras_flash.ops.scale_offset import scale_offset
from tests.helpers import error
from tests.helpers import normal
from tests.reference.scale_offset import scale_offset as loops


def test_equals_loops():
    x, gamma, beta = normal(2, 3, 5), normal(5, seed=1), normal(5, seed=2)
    result = scale_offset(*map(keras.ops.convert_to_tensor, (x, gamma, beta)))
    assert error(result, loops(x, gamma, beta)) < 1e-6
