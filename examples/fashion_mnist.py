"""Fashion-MNIST: ten kinds of clothes, as images and as sequences of 784 pixels.

    python examples/fashion_mnist.py FOLDER             # images
    python examples/fashion_mnist.py FOLDER --pixels    # one pixel a token
    python examples/fashion_mnist.py FOLDER --steps 2   # a smoke run

FOLDER holds the four gzipped idx files as published, as in the Debian package
`dataset-fashion-mnist` (/usr/share/datasets/fashion-mnist).
examples/README.md has the numbers to expect.
"""

import argparse
import gzip
import hashlib
import os
import pathlib
import struct
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from keras_flash import FlowformerClassifier
from keras_flash import FlowformerImageClassifier

ROOT = pathlib.Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "saved_models/fashion_mnist"
NUM_CLASSES, SIDE = 10, 28
BORDER = 2  # empty, around an image: 32 is a multiple of patches and stages, 28 is not
LEARNING_RATE, WEIGHT_DECAY = 2e-3, 0.05
IMAGES = dict(epochs=5, batch_size=64)
PIXELS = dict(epochs=1, batch_size=32)


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
        num_layers=(2, 2),
        hidden_dims=(64, 128),
        num_heads=4,
        patch_size=4,
        drop_path=0.0,
    )


def pixel_model():
    return FlowformerClassifier(
        NUM_CLASSES,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        intermediate_dim=128,
        input_dim=1,
        max_length=SIDE * SIDE,
        positions="learned",
        dropout=0.0,
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


def publish(model, x, accuracy, seed):
    """The image model, without its optimizer, and what it answers to eight images."""
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    path = PUBLISHED / "model.keras"
    clean = type(model).from_config(model.get_config())
    clean.set_weights(model.get_weights())
    clean.save(path)
    outputs = clean.predict_on_batch(x[:8])
    np.savez_compressed(PUBLISHED / "sample.npz", inputs=x[:8], outputs=outputs)
    backend = keras.backend.backend()
    (PUBLISHED / "README.md").write_text(
        "# fashion_mnist\n\nFlowformerImageClassifier on Fashion-MNIST; inputs are "
        "scaled as in examples/fashion_mnist.py.\n\n"
        f"- command: `KERAS_BACKEND={backend} python examples/fashion_mnist.py FOLDER "
        f"--seed {seed} --publish`\n"
        f"- metric: {100 * accuracy:.2f}% of the test set\n"
        f"- versions: keras {keras.__version__}\n"
        f"- sha256 of model.keras: `{hashlib.sha256(path.read_bytes()).hexdigest()}`\n"
        "- sample.npz: eight test images (Fashion-MNIST, Zalando SE, MIT licence) and "
        "the logits that the model gave\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pixels", action="store_true", help="one pixel a token")
    parser.add_argument("--steps", type=int, help="stop early, to see it run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--publish", action="store_true", help="renew saved_models/")
    arguments = parser.parse_args()
    if arguments.publish and (arguments.pixels or arguments.steps):
        parser.error("--publish goes with the whole run on images")
    keras.utils.set_random_seed(arguments.seed)
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
    print(
        f"{keras.backend.backend()}, {'pixels' if arguments.pixels else 'images'}, "
        f"{model.count_params():,} parameters: {100 * accuracy:.2f}% of the test set, "
        f"{(time.perf_counter() - start) / 60:.1f} minutes"
    )
    if arguments.publish:
        publish(model, sets[1][0], accuracy, arguments.seed)


if __name__ == "__main__":
    main()
