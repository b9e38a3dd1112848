"""Whole models, streamed: ours, a user's functional model, and what cannot be."""

import functools

import keras
import numpy as np
import pytest

from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention
from keras_flash import ScaleNorm
from keras_flash import StreamingModel
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
    model, start, pieces = StreamingModel(model), 0, []
    state = model.get_initial_state(2, max_length=13)
    for size in cut:
        piece = [x[:, start : start + size] for x in inputs]
        outputs, state = model.stream(piece, state)
        pieces.append(keras.tree.map_structure(to_numpy, outputs))
        start += size
    return [np.concatenate(outputs, axis=1) for outputs in zip(*pieces)]


def test_any_cut_of_a_functional_model_equals_one_call():
    model, inputs = functional_model(), inputs_of()
    whole = run(model, inputs)
    for cut in CUTS:
        for result, wanted in zip(stream_all(model, inputs, cut), whole):
            assert error(result, wanted) < 2e-5
    state = StreamingModel(model).get_initial_state(2, max_length=13)
    layers = [key for key in state if key.startswith("mixed_chunk_attention")]
    assert len(layers) == 2
    assert layers[1] == f"{layers[0]}_call_2"


def test_one_program_serves_every_position(monkeypatch):
    """Of pieces of which a number counts that only the tensor knows."""
    model, inputs = functional_model(), inputs_of()
    whole, traces = run(model, inputs), 0
    if BACKEND == "torch":
        import torch

        StreamingModel(model).stream(  # Keras' first call makes what a guard sees
            inputs, StreamingModel(model).get_initial_state(2, max_length=13)
        )
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compile = functools.partial(torch.compile, backend="eager")
        monkeypatch.setattr(torch, "compile", compile)
    plain = StreamingModel._run

    def counted(self, *args):
        nonlocal traces
        traces += self.model is model
        return plain(self, *args)

    if BACKEND != "torch":
        monkeypatch.setattr(StreamingModel, "_run", counted)
    streaming = StreamingModel(model, jit_compile=True)
    state, start = streaming.get_initial_state(2, max_length=13), 0
    for length in (3, 0, 5, 1, 4):
        piece = [np.zeros((2, 5, *x.shape[2:]), x.dtype) for x in inputs]
        for x, y in zip(piece, inputs):
            x[:, :length] = y[:, start : start + length]
        count = length  # a number and a tensor of it are one to the program
        if length % 2:
            count = keras.ops.convert_to_tensor(length, dtype="int32")
        outputs, state = streaming.stream(piece, state, count)
        for result, wanted in zip(outputs, whole):
            rows = wanted[:, start : start + length]
            assert error(to_numpy(result)[:, :length], rows) < 2e-5
        start += length
    assert start == 13
    if BACKEND == "torch":
        traces = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert traces == 1
    # The weights are not baked in.
    for weight in model.trainable_weights:
        weight.assign(1.1 * weight)
    piece = [x[:, :5] for x in inputs]
    outputs, _ = streaming.stream(piece, streaming.get_initial_state(2, max_length=13))
    assert error(outputs[0], run(model, inputs)[0][:, :5]) < 2e-5


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
    streaming, pieces = StreamingModel(model), []
    state = streaming.get_initial_state(2)
    for piece in np.split(x, [1, 6], axis=1):
        outputs, state = streaming.stream(piece, state)
        pieces.append(to_numpy(outputs))
    assert error(np.concatenate(pieces, axis=1), run(model, x)) < 2e-5


def positional_numpy(x):
    return x + np.ones((1, 13, WIDTH), "float32")


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
        (lambda: positional_numpy, "add"),
        (lambda: keras.layers.Permute((2, 1), name="p"), "p"),
        (lambda: MixedChunkAttention(key_dim=4, name="full"), "full"),
        (lambda: keras.Sequential([keras.layers.GRU(WIDTH, name="i")]), "i"),
    ],
)
def test_a_layer_that_cannot_be_streamed_is_named(make, named):
    inputs = keras.Input((13, WIDTH))
    model = keras.Model(inputs, make()(inputs))
    rule = "`causal` must be" if named == "full" else "Each layer must have"
    message = rf"{rule} .* Received: layer='{named}"
    with pytest.raises(ValueError, match=message):
        StreamingModel(model)


@pytest.mark.parametrize(
    "layer", [keras.layers.Softmax, keras.layers.LayerNormalization, "dense"]
)
def test_the_last_axis_may_be_time(layer):
    scores = keras.Input((5,))
    layer = keras.layers.Dense(5) if layer == "dense" else layer()
    model = keras.Model(scores, layer(scores))
    with pytest.raises(ValueError, match=r"Each layer must have .* Received: layer="):
        StreamingModel(model)


def test_inputs_go_by_name():
    ids = keras.Input((None,), dtype="int32", name="ids")
    add = keras.Input((None, WIDTH), name="add")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(ids) + add
    model = keras.Model(
        {"ids": ids, "add": add}, MixedChunkAttention(chunk_size=4, **GATED)(x)
    )
    set_weights(model)
    streaming, (first, second) = StreamingModel(model), inputs_of(5)
    state = streaming.get_initial_state(2)
    y, _ = streaming.stream({"ids": first, "add": second}, state)
    assert error(y, run(model, {"ids": first, "add": second})) < 2e-5
    for wrong in ([first, second], {"ids": first, "sum": second}, first):
        with pytest.raises(ValueError, match="`inputs` must be a dict of add, ids"):
            streaming.stream(wrong, state)
    with pytest.raises(ValueError, match=r"one batch size and one length\. Received"):
        streaming.stream({"ids": first, "add": second[:, :4]}, state)


def test_bad_input():
    streaming, inputs = StreamingModel(functional_model()), inputs_of(5)
    with pytest.raises(ValueError, match=r"`max_length` must be given .*Received"):
        streaming.get_initial_state(2)
    state = streaming.get_initial_state(2, max_length=5)
    with pytest.raises(ValueError, match=r"of this model gave, a dict of .*Received"):
        streaming.stream(inputs, {})
    three = streaming.get_initial_state(3, max_length=5)
    with pytest.raises(ValueError, match=r"`state` must have the batch size .*: state"):
        streaming.stream(inputs, three)
    with pytest.raises(ValueError, match=r"the 2 inputs of the model. Received: 1"):
        streaming.stream(inputs[:1], state)
    for wrong in (VOCABULARY, -1):
        ids = inputs[0].copy()
        ids[1, 2] = wrong
        message = rf"`token_ids` must be .* from 0 to 10. Received: .* from .*{wrong}"
        with pytest.raises(ValueError, match=message):
            streaming.stream([ids, inputs[1]], state)
    with pytest.raises(ValueError, match=r"`length` must be an integer.* Received"):
        streaming.stream(inputs, state, length=6)
    with pytest.raises(ValueError, match=r"`jit_compile` must be True or .* Received"):
        StreamingModel(streaming.model, jit_compile="auto")
    for wrong in (keras.Sequential(), MixedChunkAttention()):
        message = r"`model` must be a functional .* Received"
        with pytest.raises(ValueError, match=message):
            StreamingModel(wrong)
    x = keras.Input((None, WIDTH))
    ids = keras.Input((None,), dtype="int32")
    segments = MixedChunkAttention(**GATED)(x, segment_ids=ids)
    crossed = FlowAttention(2, 3, causal=True)(x, keras.layers.Dense(WIDTH)(x))
    by_place = MixedChunkAttention(**GATED)(x, None, ids)
    for outputs in (segments, by_place, crossed):
        message = r"one sequence as its input .*Received: layer=.*, (inputs|query), "
        with pytest.raises(ValueError, match=message):
            StreamingModel(keras.Model([x, ids], outputs))


def test_masks_are_not_read():
    x, mask = keras.Input((None, WIDTH)), keras.Input((None,), dtype="bool")
    y = MixedChunkAttention(chunk_size=4, **GATED)(x, mask)
    y = FlowAttention(2, 3, causal=True)(value=y, value_mask=mask, query=y)
    model, (_, inputs) = keras.Model([x, mask], y), inputs_of(5)
    set_weights(model)
    streaming = StreamingModel(model)
    state = streaming.get_initial_state(2)
    y, _ = streaming.stream([inputs, np.zeros((2, 5), "bool")], state)
    assert error(y, run(model, [inputs, np.ones((2, 5), "bool")])) < 2e-5
