import keras
import numpy as np
import pytest

from keras_flash.ops.rotary import rotate
from keras_flash.ops.rotary import rotation
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import to_numpy
from tests.reference.rotary import rotate as loops
from tests.reference.rotary import rotate_vector


def turned(x, positions):
    positions = keras.ops.convert_to_tensor(np.asarray(positions, "int32"))
    cos, sin = rotation(positions, x.shape[-1])
    return to_numpy(rotate(keras.ops.convert_to_tensor(x), cos, sin))


def test_equals_loops():
    x = normal(2, 19, 10)
    assert error(turned(x, range(19)), loops(x)) < 1e-6


@pytest.mark.parametrize("distance", [0, 1, 4095, 4096, 16_384, 30_000, 999_999])
def test_meets_the_equation_far_away(distance):
    x = normal(3, 1, 128)
    for position in (distance, -distance):
        wanted = [[rotate_vector(row, position)] for row in x[:, 0].astype("float64")]
        assert error(turned(x, [position]), wanted) < 1e-5


@pytest.mark.parametrize("shift", [1, 4096, 123_457, 1_000_000])
def test_shift_changes_no_score(shift):
    q, k = normal(1, 50, 128), normal(1, 50, 128, seed=1)
    positions = np.arange(50)

    def scores(positions):
        return turned(q, positions)[0] @ turned(k, positions)[0].T

    assert error(scores(positions + shift), scores(positions)) < 1e-5


def test_angles_are_not_rounded_to_the_dtype_of_the_inputs():
    x = keras.ops.cast(normal(1, 1, 64), "bfloat16")
    cos, sin = rotation(keras.ops.convert_to_tensor([4097]), 64)
    wanted = [[rotate_vector(to_numpy(x)[0, 0], 4097)]]
    assert error(rotate(x, cos, sin), wanted) < 1e-5
