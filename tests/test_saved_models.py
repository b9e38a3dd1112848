"""Models that were trained once and that every version must still load."""

import hashlib
import pathlib
import re

import japanese_vowels
import keras
import language_model
import numpy as np
import pytest

import keras_flash  # noqa: F401  registers the layers
from tests.helpers import BACKEND
from tests.helpers import error

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "saved_models"
MODELS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def test_they_are_there():
    assert MODELS == ["fashion_mnist", "japanese_vowels", "shakespeare_flash"]


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_day(name):
    path = FOLDER / name / "model.keras"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest in (FOLDER / name / "README.md").read_text()
    assert path.stat().st_size < 2.5e6
    with np.load(FOLDER / name / "sample.npz") as sample:
        inputs = {name: sample[name] for name in sample.files}
    outputs = inputs.pop("outputs")
    inputs = inputs if "padding_mask" in inputs else inputs["inputs"]
    model = keras.saving.load_model(path)
    assert not model.compiled  # and so without an optimizer
    assert error(model.predict_on_batch(inputs), outputs) < 1e-4


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the outputs are held on each")
def test_bits_a_byte_are_those_of_its_readme():
    folder = FOLDER / "shakespeare_flash"
    model = keras.saving.load_model(folder / "model.keras")
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    bits = language_model.bits_per_byte(model, language_model.load_text()[1])
    (written,) = re.findall(r"metric: (\S+) bits", (folder / "README.md").read_text())
    assert abs(bits - float(written)) < 6e-4
    assert bits < 2.25


@pytest.mark.skipif(BACKEND != "torch", reason="the outputs are held on each")
def test_accuracy_is_that_of_its_readme():
    """Written on TensorFlow, read here."""
    folder = FOLDER / "japanese_vowels"
    model = keras.saving.load_model(folder / "model.keras")
    inputs, speakers = japanese_vowels.load()[1]
    right = model.predict(inputs, verbose=0).argmax(axis=-1) == speakers
    (written,) = re.findall(r"metric: (\S+)%", (folder / "README.md").read_text())
    assert abs(100 * right.mean() - float(written)) < 0.28  # one series
    assert right.mean() >= 0.98
