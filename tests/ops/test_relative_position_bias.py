import keras
import numpy as np
import pytest

from keras_flash.ops import relative_position_bias as bias
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import to_numpy
from tests.reference import relative_position_bias as loops

DISTANCES = [-1_000_000, -300, -128, -127, -64, -17, -16, -8, -7, -3, -1, 0]
DISTANCES += [1, 3, 7, 8, 16, 17, 64, 127, 128, 300, 1_000_000]


def at(distances):
    return keras.ops.convert_to_tensor(np.asarray(distances, "int32"))


@pytest.mark.parametrize("bidirectional", [True, False], ids=["both", "past"])
def test_toeplitz_equals_loops(bidirectional):
    table = normal(9 if bidirectional else 5, 1)
    distances = [d for d in DISTANCES if bidirectional or d <= 0]
    result = bias.toeplitz_bias(
        keras.ops.convert_to_tensor(table), at(distances), bidirectional
    )
    wanted = [loops.toeplitz(table, d, bidirectional) for d in distances]
    assert error(result, wanted) < 1e-7


@pytest.mark.parametrize("bidirectional", [True, False], ids=["both", "past"])
@pytest.mark.parametrize("max_distance", [128, 40])
def test_t5_equals_loops(bidirectional, max_distance):
    table = normal(32, 1)
    distances = [d for d in range(-300, 301) if bidirectional or d <= 0]
    result = bias.t5_bias(
        keras.ops.convert_to_tensor(table), at(distances), max_distance, bidirectional
    )
    wanted = [loops.t5(table, d, bidirectional, max_distance) for d in distances]
    assert error(result, wanted) < 1e-7


def test_rotary_equals_loops():
    query, key = normal(128), normal(128, seed=1)
    result = bias.rotary_bias(
        *map(keras.ops.convert_to_tensor, (query, key)), at(DISTANCES)
    )
    exact = query.astype("float64"), key.astype("float64")
    wanted = [loops.rotary(*exact, d, True) for d in DISTANCES]
    assert error(result, wanted) < 1e-5


@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize("keys", [1, 3, 7])
def test_matrix_of_distances(queries, keys):
    distances = bias.distances_between(queries, keys)
    matrix = to_numpy(bias.toeplitz_matrix(distances, queries, keys))
    wanted = np.arange(keys)[None] - np.arange(queries)[:, None]
    assert (matrix == wanted).all()
    rows = keras.ops.stack([distances, 3 * distances])
    rows = to_numpy(bias.toeplitz_matrix(rows, queries, keys))
    assert (rows == np.stack([wanted, 3 * wanted])).all()
