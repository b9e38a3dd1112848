import keras
import numpy as np

from keras_flash.ops.segments import run_numbers
from keras_flash.ops.segments import visible_keys
from tests.helpers import to_numpy


def tensor(*rows):
    return keras.ops.convert_to_tensor(np.array(rows))


def test_an_id_that_returns_is_a_new_segment():
    runs = run_numbers(tensor([7, 7, 3, 7, 7, 7], [0, 1, 1, 1, 2, 0]))
    assert to_numpy(runs).tolist() == [[0, 0, 1, 2, 2, 2], [0, 1, 1, 1, 2, 3]]


def test_nothing_hidden_is_none():
    assert visible_keys() is None


def test_literal_mask():
    """Four tokens: causal, the second not real, the last a segment of its own."""
    runs = tensor([0, 0, 0, 1])
    visible = visible_keys(
        keras.ops.arange(4),
        keras.ops.arange(4),
        tensor([True, False, True, True]),
        runs,
        runs,
    )
    assert to_numpy(visible).tolist() == [
        [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]
    ]


def test_literal_mask_of_a_block_of_rows():
    visible = visible_keys(keras.ops.arange(2, 4), keras.ops.arange(4))
    assert to_numpy(visible).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
