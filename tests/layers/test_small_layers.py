"""The small layers of the models."""

import keras
import numpy as np
import pytest

from keras_flash import SinePositionEncoding
from keras_flash.layers.class_token import ClassToken
from keras_flash.layers.layer_scale import LayerScale
from keras_flash.layers.masked_mean import MaskedMean
from keras_flash.layers.position_embedding import PositionEmbedding
from tests.helpers import error
from tests.helpers import gradients
from tests.helpers import normal
from tests.helpers import run
from tests.helpers import set_weights
from tests.helpers import to_numpy


def sines(positions, width):
    """Vaswani et al., section 3.5, sines before cosines, in loops."""
    rows = np.zeros((len(positions), width))
    for row, position in zip(rows, positions):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            row[i], row[width // 2 + i] = np.sin(angle), np.cos(angle)
    return rows


def test_sines_equal_loops():
    x = normal(2, 9, 6)
    result = run(SinePositionEncoding(), x)
    assert error(result, np.stack([sines(range(9), 6)] * 2)) < 1e-5


def test_sines_stream_and_stay_exact():
    layer, x = SinePositionEncoding(), normal(2, 5, 6)
    layer.build(x.shape)
    state = layer.get_initial_state(2)
    for start, length in ((0, 3), (3, 5), (8, 0), (8, 1)):
        y, state = layer.stream(x, state, length=length)
        wanted = sines(range(start, start + length), 6)
        assert error(y[:, :length], np.stack([wanted] * 2)) < 1e-5
    far = {"position": state["position"] - 9 + 1_000_000}
    y, _ = layer.stream(x, far)
    assert error(y[0], sines(range(1_000_000, 1_000_005), 6)) < 1e-5


def test_sines_in_half_precision():
    """Position 4097 would be 4096 in bfloat16."""
    layer = SinePositionEncoding(dtype="mixed_bfloat16")
    y = layer(keras.ops.zeros((1, 4098, 6)))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert error(y[0, 4097:], sines([4097], 6)) < 5e-3


def test_sines_refuse():
    for shape, message in (
        ((2, 5, 7), "`inputs` must have an even number of features. Received"),
        ((2, 6), "`inputs` must have shape .* Received"),
    ):
        with pytest.raises(ValueError, match=message):
            SinePositionEncoding()(keras.ops.zeros(shape))


def test_masked_mean():
    layer, x = MaskedMean(), normal(3, 4, 5)
    mask = np.array([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]], bool)
    result = run(layer, x, mask=mask)
    wanted = [x[0, :2].mean(0), x[1, [1, 3]].mean(0), np.zeros(5)]
    assert error(result, np.stack(wanted)) < 1e-6
    assert error(run(layer, x), x.mean(axis=1)) < 1e-6
    layer.build(x.shape)
    found, _ = gradients(layer, np.ones((3, 5), "float32"), x, mask=mask)
    assert error(found, mask[..., None] / [[[2]], [[2]], [[1]]] * np.ones(5)) < 1e-6
    half = MaskedMean(dtype="mixed_float16")(6e4 * np.ones((1, 9, 2), "float16"))
    assert to_numpy(half).tolist() == [[60_000, 60_000]]  # their sum is no float16


def test_position_embedding():
    layer, x = PositionEmbedding(sequence_length=7), normal(2, 5, 6)
    layer.build(x.shape)
    set_weights(layer)
    table = to_numpy(layer.embeddings)
    assert table.shape == (7, 6)
    assert error(run(layer, x), np.stack([table[:5]] * 2)) < 1e-6
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, inputs + layer(inputs))
    assert error(run(model, x), x + table[:5]) < 1e-6
    _, (found,) = gradients(model, np.ones_like(x), x)
    assert error(found, 2.0 * (np.arange(7) < 5)[:, None] * np.ones(6)) < 1e-6
    start = PositionEmbedding(400)
    start.build((None, None, 60))
    assert abs(to_numpy(start.embeddings).std() - 0.02) < 1e-3
    for shape, message in (
        ((2, 8, 6), r"at most 7 positions, .* Received: inputs.shape=\(2, 8, 6\)"),
        ((2, 6), "`inputs` must have shape .* Received"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(keras.ops.zeros(shape))
    with pytest.raises(ValueError, match=r"`sequence_length` must be .* Received"):
        PositionEmbedding(0)


def test_class_token():
    layer, x = ClassToken(), normal(2, 5, 6)
    layer.build(x.shape)
    set_weights(layer)
    token = np.tile(to_numpy(layer.embedding), (2, 1, 1))
    assert error(run(layer, x), np.concatenate([token, x], axis=1)) < 1e-6
    symbol = keras.KerasTensor((None, None, 6))
    assert layer(symbol).shape == layer.compute_output_shape((None, None, 6))
    assert layer.compute_output_shape((2, 5, 6)) == (2, 6, 6)
    with pytest.raises(ValueError, match=r"`inputs` must have shape .* Received"):
        ClassToken()(keras.ops.zeros((2, 6)))


def test_layer_scale():
    layer, x = LayerScale(initial_value=0.3), normal(2, 5, 6)
    assert error(run(layer, x), 0.3 * x) < 1e-6
    set_weights(layer)
    assert error(run(layer, x), to_numpy(layer.gamma) * x) < 1e-6
    with pytest.raises(ValueError, match=r"`initial_value` must be .* Received"):
        LayerScale(-1.0)


@pytest.mark.parametrize(
    "layer", [PositionEmbedding(7, "ones"), ClassToken(), LayerScale(0.5)]
)
def test_configs(layer):
    config = layer.get_config()
    assert type(layer).from_config(config).get_config() == config
