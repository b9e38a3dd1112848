"""Artefacts of streamed models, run by their own runtimes without Keras."""

import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention
from keras_flash import StreamingModel
from tests.helpers import BACKEND
from tests.helpers import set_weights
from tests.helpers import to_numpy

RUN = pathlib.Path(__file__).parent / "run_exported.py"
LAYERS = {
    "mixed": lambda: MixedChunkAttention(8, chunk_size=4, causal=True),
    "flow": lambda: FlowAttention(2, 4, causal=True),
    "gated": lambda: GatedAttentionUnit(8, causal=True),
}
WRITERS = {"tf_saved_model": ("tensorflow", "jax"), "litert": ("tensorflow",)}
FORMATS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            BACKEND not in backends, reason=f"only {backends} write {name}"
        ),
    )
    for name, backends in WRITERS.items()
]
STATIC = {"batch_size": 2, "length": 7}


def model_of(name):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = keras.layers.Embedding(11, 8)(ids)
    layer, inputs = LAYERS[name](), {"token_ids": ids}
    if name == "flow":
        y = layer(x, x)
    elif name == "gated":
        y, inputs = layer(x), ids
    else:  # no signature has the mask
        mask = inputs["padding_mask"] = keras.Input((None,), name="padding_mask")
        y = layer(x, mask=mask)
    model = keras.Model(inputs, keras.layers.Dense(11)(x + y))
    set_weights(model)
    return model


@pytest.mark.parametrize(
    ("name", "sizes"), [*((name, {}) for name in LAYERS), ("mixed", STATIC)]
)
@pytest.mark.parametrize("format", FORMATS)
def test_scores_prefills_and_decodes_without_keras(name, format, sizes, tmp_path):
    """Every piece from a state of zeros, as one call of the model scores it."""
    model = model_of(name)
    path = tmp_path / ("model.tflite" if format == "litert" else "model")
    StreamingModel(model).export(path, format, max_length=32, **sizes)
    length = sizes.get("length", 13)
    ids = np.random.default_rng(0).integers(0, 11, (2, 2 * length + 3)).astype("int32")
    inputs = {"token_ids": ids, "padding_mask": np.ones(ids.shape, "float32")}
    if isinstance(model.input, dict):
        inputs = {key: inputs[key] for key in model.input}
    else:
        inputs = ids
    outputs = to_numpy(model.predict_on_batch(inputs))
    sample = tmp_path / "sample.npz"
    np.savez(sample, ids=ids, outputs=outputs, length=length)
    command = [sys.executable, str(RUN), format, str(path), str(sample)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    size = np.abs(outputs).max()
    assert set(found) == {"score", "prefill", "prefill of a part", "decode"}
    assert all(difference / size < 1e-5 for difference in found.values()), found


@pytest.mark.skipif(BACKEND == "torch", reason="it writes no format yet")
def test_a_failed_export_leaves_what_was_there(tmp_path, monkeypatch):
    streaming, path = StreamingModel(model_of("mixed")), tmp_path / "model"
    path.mkdir()
    (path / "notes.txt").write_text("mine")

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keras.export.ExportArchive().__class__, "write_out", full)
        with pytest.raises(OSError, match="No space"):
            streaming.export(path)
    assert [file.name for file in tmp_path.rglob("*")] == ["model", "notes.txt"]
    for _ in range(2):  # twice is as good as once
        streaming.export(path)
        assert (path / "notes.txt").read_text() == "mine"
        assert (path / "saved_model.pb").exists()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(format="zip"), r"`format` must be .* Received: format='zip'"),
        (dict(format="litert"), r"`filepath` must end in .* Received: filepath="),
        (dict(filepath="taken"), r"`filepath` must not be a file .* Received: "),
        (dict(batch_size=0), r"`batch_size` must be .* Received: batch_size=0"),
        (dict(length=1.5), r"`length` must be .* Received: length=1.5"),
        (dict(max_length=None), r"`max_length` must be .* Received: max_length=None"),
    ],
)
def test_refused_before_any_work(wrong, message, tmp_path):
    (tmp_path / "taken").write_text("mine")
    options = dict(filepath="model", format="tf_saved_model", max_length=8)
    options.update(wrong)
    if options["format"] not in WRITERS or BACKEND not in WRITERS[options["format"]]:
        message = "`format` must be .* Received: format="
    path = tmp_path / options.pop("filepath")
    with pytest.raises(ValueError, match=message):
        StreamingModel(model_of("gated")).export(path, **options)
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]
