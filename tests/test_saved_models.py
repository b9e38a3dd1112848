"""Models that were trained once and that every version must still load."""

import hashlib
import pathlib

import keras
import numpy as np
import pytest

import keras_flash  # noqa: F401  registers the layers
from tests.helpers import error

FOLDER = pathlib.Path(__file__).parents[1] / "saved_models"
MODELS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def test_there_is_one():
    assert "shakespeare_flash" in MODELS


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_day(name):
    path = FOLDER / name / "model.keras"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest in (FOLDER / name / "README.md").read_text()
    assert path.stat().st_size < 2.5e6
    with np.load(FOLDER / name / "sample.npz") as sample:
        inputs, outputs = sample["inputs"], sample["outputs"]
    model = keras.saving.load_model(path)
    assert not model.compiled  # and so without an optimizer
    assert error(model.predict_on_batch(inputs), outputs) < 1e-4
