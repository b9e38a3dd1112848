"""What a smaller file costs: the saved models in int8, int4 and float16.

    python benchmarks/compressed.py            # about two minutes
    python benchmarks/compressed.py --publish  # and its table in README.md

By Keras' own quantization, and by that of LiteRT's converter.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))

import artefacts
import japanese_vowels
import keras
import language_model
import numpy as np
import runtimes
import tensorflow as tf

import keras_flash

WEIGHTS_ALONE = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
EXAMPLES = 20  # that full-integer ranges are taken from


class Shakespeare:
    """The demo's model: bits a byte of the held-out text, window by window."""

    name, unit = "shakespeare_flash", "bits a byte"
    length = language_model.SEQUENCE_LENGTH - 1

    def __init__(self):
        training, held_out = language_model.load_text()
        windows, self.targets = language_model.held_out_windows(held_out)
        self.rows = [{"token_ids": row[None]} for row in windows]
        some, _ = language_model.held_out_windows(training)
        self.examples = [{"token_ids": row[None]} for row in some[:EXAMPLES]]

    def quality(self, logits):
        logits = np.concatenate(logits).astype("float64")
        logits -= logits.max(axis=-1, keepdims=True)
        total = np.log2(np.exp(logits).sum(axis=-1))
        own = np.take_along_axis(logits, self.targets[..., None], -1)[..., 0]
        return f"{(total - own / np.log(2)).mean():.3f}"


class Vowels:
    """The model of JapaneseVowels: accuracy on the test set."""

    name, unit, length = "japanese_vowels", "% right", japanese_vowels.MAX_LENGTH

    def __init__(self):
        (training, _), (test, self.speakers) = japanese_vowels.load()
        self.rows, self.examples = self.split(test), self.split(training)[:EXAMPLES]

    @staticmethod
    def split(x):
        count = len(x["inputs"])
        return [{k: v[i : i + 1] for k, v in x.items()} for i in range(count)]

    def quality(self, logits):
        right = np.concatenate(logits).argmax(axis=-1) == self.speakers
        return f"{100 * right.mean():.2f}"


def load(task):
    path = artefacts.ROOT / "saved_models" / task.name / "model.keras"
    return keras.saving.load_model(path, compile=False)


def by_keras(task, folder, **mode):
    """A `.keras` file, run by Keras; no time, since Keras is none for one row."""
    model = load(task)
    if mode:
        model.quantize(**mode)
    path = folder / "model.keras"
    model.save(path)
    model = keras.saving.load_model(path)
    whole = {k: np.concatenate([row[k] for row in task.rows]) for k in task.rows[0]}
    inputs = whole if isinstance(model.input, dict) else next(iter(whole.values()))
    return path, [model.predict(inputs, verbose=0)], None


def by_litert(task, folder, model=None, **options):
    """A `.tflite` file, run by its own interpreter, one row after another."""
    path = folder / "model.tflite"
    sizes = dict(batch_size=1, length=task.length)
    keras_flash.export(model or load(task), path, "litert", **sizes, **options)
    call, _ = runtimes.of_litert(path)
    outputs, seconds = [], []
    for row in task.rows:
        start = time.perf_counter()
        (found,) = call("score", row).values()
        seconds.append(time.perf_counter() - start)
        outputs.append(found)
    return path, outputs, statistics.median(seconds)


def weights_alone(task, folder):
    model = load(task)
    model.quantize(config=WEIGHTS_ALONE)
    return by_litert(task, folder, model)


def variants(task):
    """`{(file, numbers): function of a folder}`."""
    smaller = dict(optimizations=[tf.lite.Optimize.DEFAULT])
    half = dict(smaller, target_spec={"supported_types": [tf.float16]})
    integer = dict(smaller, representative_dataset=lambda: iter(task.examples))
    return {
        (".keras", "float32"): lambda folder: by_keras(task, folder),
        (".keras", "int8"): lambda folder: by_keras(task, folder, mode="int8"),
        (".keras", "int8, weights alone"): lambda folder: by_keras(
            task, folder, config=WEIGHTS_ALONE
        ),
        (".keras", "int4"): lambda folder: by_keras(task, folder, mode="int4"),
        ("LiteRT", "float32"): lambda folder: by_litert(task, folder),
        ("LiteRT", "float16"): lambda folder: by_litert(task, folder, **half),
        ("LiteRT", "int8, dynamic range"): lambda folder: by_litert(
            task, folder, **smaller
        ),
        ("LiteRT", "int8, weights alone, by Keras"): lambda folder: weights_alone(
            task, folder
        ),
        ("LiteRT", "int8, full integer"): lambda folder: by_litert(
            task, folder, **integer
        ),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publish", action="store_true", help="renew README.md")
    arguments = parser.parse_args()
    columns = ["model", "file", "numbers", "MB", "quality", "ms a row"]
    lines = [columns, ["---"] * len(columns)]
    for task in (Shakespeare(), Vowels()):
        for (file, numbers), make in variants(task).items():
            with tempfile.TemporaryDirectory() as folder:
                path, outputs, seconds = make(pathlib.Path(folder))
                size = f"{path.stat().st_size / 1e6:.2f}"
            quality = f"{task.quality(outputs)} {task.unit}"
            time_ = "" if seconds is None else f"{1e3 * seconds:.1f}"
            lines.append([task.name, file, numbers, size, quality, time_])
            print(" | ".join(lines[-1]), flush=True)
    if arguments.publish:
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        artefacts.write_in_readme("compressed table", table)


if __name__ == "__main__":
    main()
