import keras
import numpy as np

from keras_flash.ops.streams import lay_out
from keras_flash.ops.streams import pick
from keras_flash.ops.streams import slot_index
from keras_flash.ops.streams import take_rows
from tests.helpers import normal
from tests.helpers import to_numpy


def test_lay_out_puts_the_piece_behind_the_cache():
    cache = np.array([[[1.0], [2.0], [0.0]], [[0.0], [0.0], [0.0]]], "float32")
    piece = np.array([[[5.0], [6.0], [7.0]], [[8.0], [9.0], [np.nan]]], "float32")
    index = slot_index(6, keras.ops.convert_to_tensor([2, 0], dtype="int32"))
    wanted = [[-2, -1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert to_numpy(index).tolist() == wanted
    rows = to_numpy(lay_out(cache, keras.ops.convert_to_tensor(piece), index, 2))
    assert rows[..., 0].tolist() == [[1, 2, 5, 6, 0, 0], [8, 9, 0, 0, 0, 0]]
    one = keras.ops.convert_to_tensor(piece[:, :1])
    rows = to_numpy(lay_out(cache, one, index, 1))
    assert rows[..., 0].tolist() == [[1, 2, 5, 0, 0, 0], [8, 0, 0, 0, 0, 0]]


def test_take_rows_and_pick():
    x = normal(2, 3, 5)
    index = np.array([[2, 0, 9, -4], [1, 1, 0, 2]], "int32")
    taken = to_numpy(take_rows(keras.ops.convert_to_tensor(x), index))
    nearest = np.clip(index, 0, 2)
    assert (taken == np.stack([x[row][nearest[row]] for row in range(2)])).all()
    x[0, 1] = np.inf  # what is not picked is not read
    picked = to_numpy(pick(x, np.array([2, 1], "int32")))
    assert (picked == x[[0, 1], [2, 1]]).all()
