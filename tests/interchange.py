"""Writes or reads one `.keras` file with every layer of the catalogue in it.

python -m tests.interchange write FOLDER
python -m tests.interchange read FOLDER ...   # prints the largest error
"""

import pathlib
import sys

import keras
import numpy as np

from tests.catalogue import VARIANTS
from tests.catalogue import WIDTH
from tests.catalogue import is_flow
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import set_weights
from tests.helpers import to_numpy


def every_layer():
    inputs = keras.Input((None, WIDTH))
    outputs = []
    for name, (layer_class, options) in VARIANTS.items():
        layer = layer_class(**options, name=name.lower().replace("-", "_"))
        outputs.append(layer(inputs, inputs) if is_flow(name) else layer(inputs))
    model = keras.Model(inputs, outputs)
    set_weights(model)
    return model


def write(folder):
    model, x = every_layer(), normal(2, 9, WIDTH)
    np.savez(folder / "arrays.npz", *map(to_numpy, model(x)), x=x)
    model.save(folder / "model.keras")


def largest_error(folder):
    with np.load(folder / "arrays.npz") as arrays:
        x, wanted = arrays["x"], [arrays[f"arr_{i}"] for i in range(len(VARIANTS))]
    model = keras.saving.load_model(folder / "model.keras")
    return max(map(error, model(x), wanted))


if __name__ == "__main__":
    folders = [pathlib.Path(folder) for folder in sys.argv[2:]]
    if sys.argv[1] == "write":
        write(folders[0])
    else:
        print(max(map(largest_error, folders)))
