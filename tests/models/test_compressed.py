"""Smaller and finer: int8, int4 and LoRA on every kind of model; names of weights."""

import json
import pathlib

import keras
import numpy as np
import pytest

import keras_flash
from keras_flash.models.exporting import WRITTEN_BY
from keras_flash.models.signatures import input_symbols
from tests import catalogue
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import run
from tests.helpers import set_weights
from tests.models.test_export import check

PATHS = pathlib.Path(__file__).parents[1] / "golden/variable_paths.json"
TEXT = dict(vocabulary_size=11, num_layers=2, hidden_dim=8)
FLASH = dict(TEXT, key_dim=8, chunk_size=4)
FLOW = dict(num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
MODELS = {
    "FLASH": lambda: keras_flash.FLASHBackbone(**FLASH),
    "FLASH-Quad": lambda: keras_flash.FLASHBackbone(
        **TEXT, key_dim=8, attention="gated_attention_unit"
    ),
    "causal FLASH": lambda: keras_flash.FLASHBackbone(**FLASH, causal=True),
    "Flowformer": lambda: keras_flash.FlowformerBackbone(**FLOW, vocabulary_size=11),
    "causal Flowformer": lambda: keras_flash.FlowformerBackbone(
        **FLOW, vocabulary_size=11, causal=True
    ),
    "series": lambda: keras_flash.FlowformerClassifier(3, **FLOW, input_dim=5),
    "images": lambda: keras_flash.FlowformerImageClassifier(
        3, 8, 2, num_layers=(1, 1), hidden_dims=(8, 8), num_heads=2, patch_size=2
    ),
    "decisions": lambda: keras_flash.FlowformerDecisionModel(
        4, 2, max_timestep=9, **FLOW
    ),
}
LENGTH = 9
each_model = pytest.mark.parametrize("name", MODELS)


def made(name):
    model = MODELS[name]()
    set_weights(model)
    return model


def inputs_of(model):
    random = np.random.default_rng(0)
    inputs = {}
    for name, symbol in input_symbols(model).items():
        shape = (2, *(LENGTH if n is None else n for n in symbol.shape[1:]))
        whole = symbol.dtype.startswith("int")
        inputs[name] = random.integers(0, 2, shape) if whole else normal(*shape)
        if name.endswith("mask"):
            inputs[name] = np.ones(shape)
            inputs[name][1, -3:] = 0
        inputs[name] = inputs[name].astype(symbol.dtype)
    return inputs if isinstance(model.input, dict) else inputs[model.inputs[0].name]


@each_model
@pytest.mark.parametrize(("mode", "bound"), [("int8", 0.1), ("int4", 0.6)])
def test_quantized_saved_and_loaded(name, mode, bound, tmp_path):
    model = made(name)
    inputs = inputs_of(model)
    before = run(model, inputs)
    model.quantize(mode)
    quantized = run(model, inputs)
    assert 1e-4 < error(quantized, before) < bound
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert error(run(loaded, inputs), quantized) < 1e-6


WEIGHTS_ALONE = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
EXPORTED = {
    "tf_saved_model": [dict(mode="int8"), dict(mode="int4")],
    "litert": [dict(config=WEIGHTS_ALONE)],
}


@pytest.mark.parametrize(
    ("format", "mode"),
    [
        (format, mode)
        for format, modes in EXPORTED.items()
        if BACKEND in WRITTEN_BY[format]
        for mode in modes
    ],
)
def test_quantized_and_exported(format, mode, tmp_path):
    """After a way through a file, as a user would have it."""
    model = made("FLASH")
    model.quantize(**mode)
    model.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    inputs = inputs_of(model)
    path = tmp_path / ("model.tflite" if format == "litert" else "model")
    keras_flash.export(model, path, format, batch_size=2, length=LENGTH)
    outputs = run(model, inputs)
    assert check(path, format, outputs, tmp_path, LENGTH, **inputs) == {"score"}


@pytest.mark.parametrize("name", ["FLASH", "causal FLASH", "Flowformer"])
def test_lora_of_a_backbone(name, tmp_path):
    """It trains its factors alone; a saved model has them in its kernels."""
    backbone = made(name)
    inputs = inputs_of(backbone)
    before = run(backbone, inputs)
    backbone.enable_lora(2)
    assert error(run(backbone, inputs), before) < 1e-6
    kernels = [w for w in backbone.non_trainable_variables if "kernel" in w.path]
    values = [keras.ops.convert_to_numpy(w) for w in kernels]
    model = keras.Sequential([keras.layers.Dense(1)])
    model = keras.Model(backbone.input, model(backbone.output))
    model.compile(keras.optimizers.Adam(0.1), "mse")
    model.fit(inputs, normal(2, LENGTH, 1), epochs=3, verbose=0)
    assert len(kernels) >= 4
    for kernel, value in zip(kernels, values):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(kernel), value)
    tuned = run(backbone, inputs)
    assert error(tuned, before) > 1e-2
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not [w.path for w in loaded.weights if "lora" in w.path]
    assert error(run(loaded, inputs), tuned) < 1e-5


def paths_of(model):
    return sorted(w.path.removeprefix(f"{model.name}/") for w in model.weights)


def found_paths():
    """Of each kind of model, and of each layer with all options that add weights."""
    layers = {
        f"{layer.__name__} {option}": catalogue.OPTIONS[layer][1][option]
        for layer in catalogue.OPTIONS
        for option in catalogue.OPTIONS[layer][1]
    }
    found = {name: paths_of(make()) for name, make in MODELS.items()}
    for name, options in layers.items():
        class_name, _ = name.split()
        layer_class = getattr(keras_flash, class_name)
        layer = layer_class(**{**catalogue.OPTIONS[layer_class][0], **options})
        shape = (None, LENGTH, 8)
        layer.build(*[shape] * (2 if class_name == "FlowAttention" else 1))
        found[name] = paths_of(layer)
    return found


def test_weights_keep_their_names():
    """A file of weights that somebody converted finds each by its path."""
    assert found_paths() == json.loads(PATHS.read_text())
