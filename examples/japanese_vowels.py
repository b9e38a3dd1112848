"""Trains FlowformerClassifier on JapaneseVowels: nine speakers, 12 channels.

    python examples/japanese_vowels.py            # three seeds
    python examples/japanese_vowels.py --paper    # the paper's width
    python examples/japanese_vowels.py --publish  # and saves model and figures
    python examples/japanese_vowels.py --steps 2  # a smoke run

The paper's settings for time series, at a quarter of its width: two post-norm blocks,
learned positions, all tokens flattened into the last layer, batch 16, 100 epochs, the
gradient clipped to norm 4. The paper's optimizer is RAdam at 1e-3; Keras has none, so
Adam warms up to that rate.
examples/README.md has the numbers to expect.
"""

import argparse
import gzip
import os
import pathlib
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import artefacts
import keras
import numpy as np

from keras_flash import FlowformerClassifier

DATA = pathlib.Path(__file__).resolve().parent / "data"
MAX_LENGTH, NUM_CHANNELS, NUM_CLASSES = 29, 12, 9
HIDDEN_DIM, PAPER_DIM = 128, 512
NUM_LAYERS, NUM_HEADS = 2, 8
EPOCHS, BATCH_SIZE = 100, 16
LEARNING_RATE, WARM_UP = 1e-3, 10  # epochs
CLIP = 4.0
SEEDS = (0, 1, 2)


def read(part):
    """Series `(n, 29, 12)` with zeros behind, which steps are real, and speakers.

    A line is one series: channels parted by colons, then the class.
    """
    lines = gzip.decompress((DATA / f"japanese_vowels_{part}.ts.gz").read_bytes())
    lines = lines.decode().splitlines()
    rows = [line.split(":") for line in lines if line and line[0] not in "#@"]
    series = np.zeros((len(rows), MAX_LENGTH, NUM_CHANNELS), "float32")
    mask = np.zeros((len(rows), MAX_LENGTH), "int32")
    for row, (*channels, _) in enumerate(rows):
        values = np.array([channel.split(",") for channel in channels], "float32").T
        series[row, : len(values)] = values
        mask[row, : len(values)] = 1
    return series, mask, np.array([int(row[-1]) - 1 for row in rows])


def load():
    """Training and test set, scaled by the training set's mean and deviation."""
    parts = [read("train"), read("test")]
    series, mask, _ = parts[0]
    mean, deviation = series[mask > 0].mean(axis=0), series[mask > 0].std(axis=0)
    return [
        ({"inputs": (series - mean) / deviation, "padding_mask": mask}, speakers)
        for series, mask, speakers in parts
    ]


def make_model(hidden_dim):
    return FlowformerClassifier(
        NUM_CLASSES,
        NUM_LAYERS,
        NUM_HEADS,
        hidden_dim,
        4 * hidden_dim,
        input_dim=NUM_CHANNELS,
        max_length=MAX_LENGTH,
        pooling="flatten",
        positions="learned",
        norm_first=False,
    )


def train(hidden_dim, seed, steps):
    """The model, and the test accuracy after each epoch."""
    keras.utils.set_random_seed(seed)
    (x, y), test = load()
    if steps is not None:
        few = slice(steps * BATCH_SIZE)
        x, y = {name: array[few] for name, array in x.items()}, y[few]
        test = x, y
    model = make_model(hidden_dim)
    warm_up = keras.callbacks.LearningRateScheduler(
        lambda epoch: LEARNING_RATE * min(1.0, (epoch + 1) / WARM_UP)
    )
    model.compile(
        keras.optimizers.Adam(global_clipnorm=CLIP),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS if steps is None else 1,
        validation_data=test,
        callbacks=[warm_up],
        verbose=0,
    )
    return model, history.history["val_accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help="stop early, to see it run")
    parser.add_argument("--paper", action="store_true", help="the paper's width")
    parser.add_argument("--publish", action="store_true", help="renew saved_models/")
    arguments = parser.parse_args()
    if arguments.publish and arguments.steps:
        parser.error("--publish goes with the whole run")
    hidden_dim = PAPER_DIM if arguments.paper else HIDDEN_DIM
    lasts, bests, start = {}, {}, time.perf_counter()
    for seed in SEEDS if arguments.steps is None else SEEDS[:1]:
        model, accuracies = train(hidden_dim, seed, arguments.steps)
        lasts[seed] = 100 * accuracies[-1]
        bests[seed] = 100 * max(accuracies)
        print(
            f"seed {seed}: {lasts[seed]:.2f}% of the test set in the last epoch, "
            f"{bests[seed]:.2f}% in the best one",
            flush=True,
        )
        if arguments.publish and not arguments.paper and seed == SEEDS[0]:
            artefacts.publish(
                "japanese_vowels",
                model,
                {name: array[:2] for name, array in load()[1][0].items()},
                about=f"FlowformerClassifier of width {HIDDEN_DIM} on JapaneseVowels; "
                "inputs are scaled as in examples/japanese_vowels.py.",
                command="examples/japanese_vowels.py --publish",
                metric=f"{lasts[seed]:.2f}% of the test set (seed {seed}, last epoch)",
                contents="two test series",
            )
    minutes = (time.perf_counter() - start) / 60 / len(lasts)
    expected = (
        f"last epoch {artefacts.by_seed(lasts)}; best epoch {artefacts.by_seed(bests)} "
        f"({artefacts.machine()}, {minutes:.1f} minutes a seed)"
    )
    print(f"width {hidden_dim}, {model.count_params():,} parameters")
    print(expected)
    if arguments.publish:
        artefacts.write_figures(
            f"japanese_vowels.py{' --paper' if arguments.paper else ''}",
            f"{artefacts.mean(lasts)} in the last epoch, {artefacts.mean(bests)} in "
            "the best one (mean of three seeds)",
            expected,
        )


if __name__ == "__main__":
    main()
