"""Fashion-MNIST: ten kinds of clothes, as images and as sequences of 784 pixels.

    python examples/fashion_mnist.py FOLDER             # images
    python examples/fashion_mnist.py FOLDER --pixels    # one pixel a token
    python examples/fashion_mnist.py FOLDER --publish   # and saves model and figure
    python examples/fashion_mnist.py FOLDER --steps 2   # a smoke run

FOLDER holds the four gzipped idx files as published, as in the Debian package
`dataset-fashion-mnist` (/usr/share/datasets/fashion-mnist).
examples/README.md has the numbers to expect.
"""

import argparse
import gzip
import os
import pathlib
import struct
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import artefacts
import keras
import numpy as np

from keras_flash import FlowformerClassifier
from keras_flash import FlowformerImageClassifier

NUM_CLASSES, SIDE = 10, 28
BORDER = 2  # empty, around an image: 32 is a multiple of patches and stages, 28 is not
LEARNING_RATE, WEIGHT_DECAY = 2e-3, 0.05
IMAGES = dict(epochs=10, batch_size=64)
IMAGE_MODEL = dict(
    num_layers=(2, 2), hidden_dims=(64, 128), num_heads=4, patch_size=4, drop_path=0.0
)
PIXELS = dict(epochs=2, batch_size=32)
PIXEL_MODEL = dict(
    num_layers=2, num_heads=4, hidden_dim=64, intermediate_dim=128, dropout=0.0
)
SEED = 0


def read_idx(path):
    """The array of an idx file: two zeros, the type (8: bytes), the rank, the sizes."""
    content = gzip.decompress(path.read_bytes())
    zeros, kind, rank = struct.unpack(">HBB", content[:4])
    sizes = struct.unpack(f">{rank}I", content[4 : 4 + 4 * rank])
    if zeros or kind != 8 or len(content) != 4 + 4 * rank + np.prod(sizes):
        raise ValueError(f"{path} must be an idx file of bytes.")
    return np.frombuffer(content, "uint8", offset=4 + 4 * rank).reshape(sizes)


def load(folder, part):
    """Images `(n, 28, 28)` of mean 0 and deviation 1, about, and labels."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").astype("float32")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype("int32")
    return (images - 73.0) / 90.0, labels


def as_images(images):
    border = [(0, 0), (BORDER, BORDER), (BORDER, BORDER)]
    return np.pad(images, border, constant_values=images.min())[..., None]


def as_pixels(images):
    mask = np.ones((len(images), SIDE * SIDE), "int32")
    return {"inputs": images.reshape(len(images), -1, 1), "padding_mask": mask}


def image_model():
    return FlowformerImageClassifier(
        NUM_CLASSES,
        image_size=SIDE + 2 * BORDER,
        num_channels=1,
        **IMAGE_MODEL,
    )


def pixel_model():
    return FlowformerClassifier(
        NUM_CLASSES,
        input_dim=1,
        max_length=SIDE * SIDE,
        positions="learned",
        **PIXEL_MODEL,
    )


def train(model, setting, train_set, test_set, steps):
    """The test accuracy after the last epoch."""
    epochs, batch_size = setting["epochs"], setting["batch_size"]
    total = steps or epochs * (len(train_set[1]) // batch_size)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, total, warmup_target=LEARNING_RATE, warmup_steps=max(total // 20, 1)
    )
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=WEIGHT_DECAY, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        *train_set,
        batch_size=batch_size,
        epochs=1 if steps else epochs,
        validation_data=test_set,
        verbose=2,
    )
    return history.history["val_accuracy"][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pixels", action="store_true", help="one pixel a token")
    parser.add_argument("--steps", type=int, help="stop early, to see it run")
    parser.add_argument("--publish", action="store_true", help="renew saved_models/")
    arguments = parser.parse_args()
    if arguments.publish and arguments.steps:
        parser.error("--publish goes with the whole run")
    keras.utils.set_random_seed(SEED)
    view = as_pixels if arguments.pixels else as_images
    setting = PIXELS if arguments.pixels else IMAGES
    sets = []
    for part in ("train", "t10k"):
        images, labels = load(arguments.folder, part)
        if arguments.steps:
            images = images[: arguments.steps * setting["batch_size"]]
        sets.append((view(images), labels[: len(images)]))
    model = pixel_model() if arguments.pixels else image_model()
    start = time.perf_counter()
    accuracy = train(model, setting, *sets, arguments.steps)
    minutes = (time.perf_counter() - start) / 60
    ours = (
        f"{100 * accuracy:.2f}% after {setting['epochs']} epochs, {minutes:.0f} minutes"
    )
    expected = f"{ours} (seed {SEED}, {artefacts.machine()})"
    print(f"{model.count_params():,} parameters\n{expected}")
    if not arguments.publish:
        return
    pixels = " --pixels" if arguments.pixels else ""
    artefacts.write_figures(f"fashion_mnist.py FOLDER{pixels}", ours, expected)
    if not arguments.pixels:
        artefacts.publish(
            "fashion_mnist",
            model,
            sets[1][0][:8],
            about="FlowformerImageClassifier on Fashion-MNIST; inputs are scaled as in "
            "examples/fashion_mnist.py.",
            command="examples/fashion_mnist.py FOLDER --publish",
            metric=f"{100 * accuracy:.2f}% of the test set",
            contents="eight test images (Fashion-MNIST, Zalando SE, MIT licence)",
        )


if __name__ == "__main__":
    main()
