"""Whole models, streamed: ours, a user's functional model, and what cannot be."""

import keras
import numpy as np
import pytest

from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention
from keras_flash import ScaleNorm
from keras_flash.models import get_initial_state
from keras_flash.models import stream
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import run
from tests.helpers import set_weights
from tests.helpers import to_numpy

VOCABULARY, WIDTH = 11, 6
CUTS = ([1] * 13, [5, 1, 7], [13])
GATED = dict(key_dim=4, causal=True)


def functional_model():
    """One of each kind of layer, a shared one, operations, a nested model."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    extra = keras.Input((None, WIDTH), name="extra")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(ids) + extra * 0.5
    x = keras.layers.BatchNormalization(name="normalization")(x)
    shared = MixedChunkAttention(chunk_size=4, **GATED)
    x = keras.layers.Add()([x, shared(ScaleNorm()(x))])
    x = x + shared(keras.layers.LayerNormalization()(x))
    x = keras.layers.Dropout(0.5)(x)
    inner = keras.Sequential(
        [keras.layers.Dense(WIDTH), GatedAttentionUnit(**GATED), keras.layers.ReLU()]
    )
    x = x - keras.ops.tanh(inner(x))
    y = FlowAttention(2, 3, causal=True)(x, x)
    x = keras.layers.Concatenate()([x, y])
    model = keras.Model([ids, extra], [keras.layers.Dense(VOCABULARY)(x), y])
    set_weights(model)
    model.get_layer("normalization").moving_variance.assign([0.5] * WIDTH)
    return model


def inputs_of(length=13):
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (2, length)).astype("int32")
    return [ids, normal(2, length, WIDTH)]


def stream_all(model, inputs, cut):
    state, start, pieces = get_initial_state(model, 2, max_length=13), 0, []
    for size in cut:
        piece = [x[:, start : start + size] for x in inputs]
        outputs, state = stream(model, piece, state)
        pieces.append(keras.tree.map_structure(to_numpy, outputs))
        start += size
    return [np.concatenate(outputs, axis=1) for outputs in zip(*pieces)]


def test_any_cut_of_a_functional_model_equals_one_call():
    model, inputs = functional_model(), inputs_of()
    whole = run(model, inputs)
    for cut in CUTS:
        for result, wanted in zip(stream_all(model, inputs, cut), whole):
            assert error(result, wanted) < 2e-5
    state = get_initial_state(model, 2, max_length=13)
    layers = [key for key in state if key.startswith("mixed_chunk_attention")]
    assert len(layers) == 2
    assert layers[1] == f"{layers[0]}_call_2"


def test_length_may_be_traced_and_one_step_serves():
    model, inputs = functional_model(), inputs_of()
    whole, traces = run(model, inputs), 0

    def step(piece, state, length):
        nonlocal traces
        traces += 1
        return stream(model, piece, state, length)

    if BACKEND == "tensorflow":
        import tensorflow as tf

        step = tf.function(step, jit_compile=True)
    elif BACKEND == "jax":
        import jax

        step = jax.jit(step)
    state, start = get_initial_state(model, 2, max_length=13), 0
    for length in (3, 0, 5, 1, 4):
        piece = [np.zeros((2, 5, *x.shape[2:]), x.dtype) for x in inputs]
        for x, y in zip(piece, inputs):
            x[:, :length] = y[:, start : start + length]
        piece = [keras.ops.convert_to_tensor(x) for x in piece]
        count = keras.ops.convert_to_tensor(length, dtype="int32")
        outputs, state = step(piece, state, count)
        for result, wanted in zip(outputs, whole):
            rows = wanted[:, start : start + length]
            assert error(to_numpy(result)[:, :length], rows) < 2e-5
        start += length
    assert start == 13
    assert traces == (5 if BACKEND == "torch" else 1)


@keras.saving.register_keras_serializable(package="keras_flash_tests")
class Doubled(keras.layers.Layer):
    tokenwise = True

    def call(self, x):
        return 2 * x


def test_a_users_own_layer_says_that_it_is_tokenwise():
    inputs = keras.Input((None, WIDTH))
    model = keras.Model(inputs, MixedChunkAttention(**GATED)(Doubled()(inputs)))
    set_weights(model)
    x = normal(2, 13, WIDTH)
    (result,) = stream_all_one(model, x)
    assert error(result, run(model, x)) < 2e-5


def stream_all_one(model, x):
    state, pieces = get_initial_state(model, 2), []
    for piece in np.split(x, [1, 6], axis=1):
        outputs, state = stream(model, piece, state)
        pieces.append(to_numpy(outputs))
    return [np.concatenate(pieces, axis=1)]


def positional(x):
    return x + keras.ops.convert_to_tensor(np.ones((1, 13, WIDTH), "float32"))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: keras.layers.GRU(WIDTH, return_sequences=True, name="g"), "g"),
        (lambda: keras.layers.Conv1D(WIDTH, 2, padding="causal", name="c"), "c"),
        (lambda: keras.layers.LayerNormalization(axis=1, name="n"), "n"),
        (lambda: keras.layers.LayerNormalization(axis=[1, 2], name="m"), "m"),
        (lambda: keras.layers.Softmax(axis=1, name="s"), "s"),
        (lambda: lambda x: keras.ops.flip(x, axis=1), "flip"),
        (lambda: positional, "add"),
        (lambda: keras.Sequential([keras.layers.GRU(WIDTH, name="i")]), "i"),
    ],
)
def test_a_layer_that_cannot_be_streamed_is_named(make, named):
    inputs = keras.Input((13, WIDTH))
    model = keras.Model(inputs, make()(inputs))
    message = rf"Each layer must have .* Received: layer='{named}"
    with pytest.raises(ValueError, match=message):
        get_initial_state(model, 2)
    with pytest.raises(ValueError, match=message):
        stream(model, normal(2, 3, WIDTH), {})


def test_bad_input():
    model, inputs = functional_model(), inputs_of(5)
    with pytest.raises(ValueError, match=r"`max_length` must be given .*Received"):
        get_initial_state(model, 2)
    state = get_initial_state(model, 2, max_length=5)
    with pytest.raises(ValueError, match=r"of this model gave, a dict of .*Received"):
        stream(model, inputs, {})
    with pytest.raises(ValueError, match=r"`state` must have the batch size .*: state"):
        stream(model, inputs, get_initial_state(model, 3, max_length=5))
    with pytest.raises(ValueError, match=r"the 2 inputs of the model. Received: 1"):
        stream(model, inputs[:1], state)
    for wrong in (VOCABULARY, -1):
        ids = inputs[0].copy()
        ids[1, 2] = wrong
        message = rf"`token_ids` must be from 0 to 10, .* Received: ids from .*{wrong}"
        with pytest.raises(ValueError, match=message):
            stream(model, [ids, inputs[1]], state)
    with pytest.raises(ValueError, match=r"`length` must be an integer.* Received"):
        stream(model, inputs, state, length=6)
    with pytest.raises(ValueError, match=r"`model` must be a functional .* Received"):
        get_initial_state(keras.Sequential(), 2)
    with pytest.raises(ValueError, match=r"`model` must be a functional .* Received"):
        get_initial_state(MixedChunkAttention(), 2)
    x = keras.Input((None, WIDTH))
    ids = keras.Input((None,), dtype="int32")
    segmented = keras.Model([x, ids], MixedChunkAttention(**GATED)(x, segment_ids=ids))
    with pytest.raises(
        ValueError, match=r"one sequence as its input .*Received: layer"
    ):
        stream(segmented, inputs[::-1], get_initial_state(segmented, 2))
    other = keras.layers.Dense(WIDTH)(x)
    crossed = keras.Model(x, FlowAttention(2, 3, causal=True)(x, other))
    with pytest.raises(
        ValueError, match=r"one sequence as its input .*Received: layer"
    ):
        stream(crossed, inputs[1], get_initial_state(crossed, 2))
