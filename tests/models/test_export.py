"""Artefacts of models, run by their own runtimes without Keras."""

import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_flash
from keras_flash import FlowAttention
from keras_flash import FlowformerClassifier
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention
from keras_flash import StreamingModel
from keras_flash.models.exporting import SUFFIXES
from keras_flash.models.exporting import WRITTEN_BY
from tests.helpers import BACKEND
from tests.helpers import set_weights
from tests.helpers import to_numpy

RUN = pathlib.Path(__file__).parent / "run_exported.py"
LAYERS = {
    "mixed": lambda: MixedChunkAttention(8, chunk_size=4, causal=True),
    "flow": lambda: FlowAttention(2, 4, causal=True),
    "gated": lambda: GatedAttentionUnit(8, causal=True),
    "laplace": lambda: GatedAttentionUnit(
        8, causal=True, attention_activation="laplace"
    ),
}
LENGTH = 7
SIZES = {"batch_size": 2, "length": LENGTH}
HERE = [format for format in WRITTEN_BY if BACKEND in WRITTEN_BY[format]]


def model_of(name):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = keras.layers.Embedding(11, 8)(ids)
    layer, inputs = LAYERS[name](), {"token_ids": ids}
    if name == "flow":
        y = layer(x, x)
    elif name == "mixed":  # no signature has the mask
        mask = inputs["padding_mask"] = keras.Input((None,), name="padding_mask")
        y = layer(x, mask=mask)
    else:
        y, inputs = layer(x), ids
    model = keras.Model(inputs, keras.layers.Dense(11)(x + y))
    set_weights(model)
    return model


def check(path, format, outputs, folder, length=LENGTH, **inputs):
    """Differences by signature, as the format's runtime finds them."""
    sample = folder / "sample.npz"
    np.savez(sample, outputs=outputs, length=length, **inputs)
    command = [sys.executable, str(RUN), format, str(path), str(sample)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    size = np.abs(outputs).max()
    assert all(difference / size < 1e-5 for difference in found.values()), found
    return set(found)


def sizes_for(format, static):
    """All sizes, or no more than the backend must know."""
    if static:
        return SIZES
    return {name: SIZES[name] for name in WRITTEN_BY[format][BACKEND]}


CELLS = [
    *((HERE[0], name, False) for name in LAYERS),
    *((format, "mixed", False) for format in HERE[1:]),
    (HERE[-1], "mixed", True),
]


@pytest.mark.parametrize(("format", "name", "static"), CELLS)
def test_scores_prefills_and_decodes_without_keras(format, name, static, tmp_path):
    """Every piece from a state of zeros, as one call of the model scores it."""
    model = model_of(name)
    sizes = sizes_for(format, static)
    suffix = SUFFIXES[format] if format == "litert" else ""
    path = tmp_path / f"model{suffix}"
    keras_flash.export(StreamingModel(model), path, format, max_length=32, **sizes)
    length = sizes.get("length", 13)
    shape = (2, 2 * length + 3)
    ids = np.random.default_rng(0).integers(0, 11, shape).astype("int32")
    inputs = {"token_ids": ids}
    if name == "mixed":
        inputs["padding_mask"] = np.ones(shape, "float32")
    if not isinstance(model.input, dict):
        inputs = ids
    outputs = to_numpy(model.predict_on_batch(inputs))
    found = check(path, format, outputs, tmp_path, length, token_ids=ids)
    assert found == {"score", "prefill", "prefill of a part", "decode"}


@pytest.mark.parametrize("format", HERE)
def test_a_model_as_it_is(format, tmp_path):
    """With its mask, where only the whole sequence is scored."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    mask = keras.Input((None,), dtype="int32", name="padding_mask")
    x = keras.layers.Embedding(11, 8)(ids)
    x = MixedChunkAttention(8, chunk_size=4)(x, mask=mask)
    x = FlowAttention(2, 4)(x, x, query_mask=mask, value_mask=mask)
    model = keras.Model({"token_ids": ids, "padding_mask": mask}, x)
    set_weights(model)
    path = tmp_path / f"model{SUFFIXES[format]}"
    sizes = sizes_for(format, static=False)
    keras_flash.export(model, path, format, **sizes)
    length = sizes.get("length", 13)
    inputs = {
        "token_ids": np.arange(2 * length, dtype="int32").reshape(2, length) % 11,
        "padding_mask": np.array([[1] * length, [1] * (length - 3) + [0] * 3], "int32"),
    }
    outputs = to_numpy(model.predict_on_batch(inputs))
    assert check(path, format, outputs, tmp_path, length, **inputs) == {"score"}


def full_disk(*args, **kwargs):
    raise OSError("No space left on device")


@pytest.mark.parametrize("format", HERE)
def test_a_failed_export_leaves_what_was_there(format, tmp_path, monkeypatch):
    model = FlowformerClassifier(3, 1, 2, 8, 16, input_dim=4)
    path = tmp_path / f"model{SUFFIXES[format]}"
    notes = (path if format == "tf_saved_model" else tmp_path) / "notes.txt"
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("mine")
    sizes = sizes_for(format, static=False)
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full_disk)  # all is made, none is there
        with pytest.raises(OSError, match="No space"):
            keras_flash.export(model, path, format, **sizes)
    assert sorted(tmp_path.rglob("*")) == before
    for _ in range(2):  # twice is as good as once
        keras_flash.export(model, path, format, **sizes)
        assert notes.read_text() == "mine"
        assert path.exists()
    folder = path if format == "tf_saved_model" else tmp_path
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]
    assert len(list(folder.iterdir())) > 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(format="zip"), r"`format` must be .* Received: format='zip'"),
        (dict(format="torch"), r"`format` must be .* 'torch' on torch.*format='torch'"),
        (dict(format="litert", **SIZES), r"`filepath` must end in .* filepath="),
        (dict(filepath="taken"), r"`filepath` must not be a file .* Received: "),
        (dict(batch_size=0), r"`batch_size` must be .* Received: batch_size=0"),
        (dict(length=1.5), r"`length` must be .* Received: length=1.5"),
        (dict(max_length=None), r"`max_length` must be .* Received: max_length=None"),
        (dict(opset=17), r"`options` must be left out .* Received: opset"),
    ],
)
def test_refused_before_any_work(wrong, message, tmp_path):
    (tmp_path / "taken").write_text("mine")
    some = "onnx" if BACKEND == "torch" else "tf_saved_model"
    options = dict(filepath="model", format=some, max_length=8)
    options.update(wrong)
    if options["format"] == "torch" == BACKEND:
        options.update(opset=17)
        message = "`options` must be left out"
    path = tmp_path / options.pop("filepath")
    with pytest.raises(ValueError, match=message):
        keras_flash.export(StreamingModel(model_of("gated")), path, **options)
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_only_what_has_inputs_is_exported(tmp_path):
    class Subclassed(keras.Model):
        def call(self, inputs):
            return inputs

    for model in (Subclassed(), keras.Sequential(), "model"):
        with pytest.raises(ValueError, match=r"`model` must be .* to be exported"):
            keras_flash.export(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif("litert" not in HERE, reason="nothing to refuse")
def test_litert_refuses(tmp_path):
    model = FlowformerClassifier(3, 1, 2, 8, 16, input_dim=4)
    path = tmp_path / "model.tflite"
    with pytest.raises(ValueError, match=r"`options` must be attributes .*: speed"):
        keras_flash.export(model, path, "litert", **SIZES, speed=1)
    if WRITTEN_BY["litert"][BACKEND]:
        with pytest.raises(
            ValueError, match=r"`batch_size` must be given .*tensorflow"
        ):
            keras_flash.export(model, path, "litert")
    model.quantize("int8")
    with pytest.raises(ValueError, match=r"activation_quantizer=None.* in int8"):
        keras_flash.export(model, path, "litert", **SIZES)
    assert not list(tmp_path.iterdir())
