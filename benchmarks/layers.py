"""Time of each layer, and of softmax attention, against the length.

    KERAS_BACKEND=torch python benchmarks/layers.py

Writes one JSON line a measurement to benchmarks/results/layers-BACKEND.jsonl and a
table beside it. A row's share is the rate of the operations that the layer really
needs, over the best rate of float32 matrix products of 1,024 and 2,048 in the same
process, so it compares across machines and does not move with their load.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention

BACKEND = keras.backend.backend()
RESULTS = pathlib.Path(__file__).resolve().parent / "results"
LENGTHS = (512, 1024, 2048, 4096, 8192)
WIDTH, EXPANDED, KEY_DIM, CHUNK = 256, 512, 128, 256
HEADS = 8
RUNS = 5


def layers():
    for causal in (False, True):
        label = "causal" if causal else "full"
        yield f"GatedAttentionUnit {label}", GatedAttentionUnit(causal=causal)
        yield f"MixedChunkAttention {label}", MixedChunkAttention(causal=causal)
        yield (
            f"FlowAttention {label}",
            FlowAttention(HEADS, WIDTH // HEADS, causal=causal),
        )
        # The peer: what the layers above stand in place of.
        yield (
            f"MultiHeadAttention {label}",
            keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS),
        )


def call_layer(name, layer, x):
    """The layer's outputs, as self-attention."""
    if name.startswith("MultiHeadAttention"):
        return layer(x, x, use_causal_mask=name.endswith("causal"))
    return layer(x, x) if isinstance(layer, FlowAttention) else layer(x)


def needed_operations(name, length):
    """Floating-point operations of the products that one forward pass needs."""
    kind, label = name.split()
    if kind == "FlowAttention":
        head = WIDTH // HEADS
        return 2 * length * (4 * WIDTH * WIDTH + 2 * HEADS * head * head)
    span = min(CHUNK, length) if kind == "MixedChunkAttention" else length
    pairs = length * ((span + 1) / 2 if label == "causal" else span)
    if kind == "MultiHeadAttention":
        return 2 * (4 * length * WIDTH * WIDTH + 2 * pairs * WIDTH)
    projections = 2 * length * WIDTH * (3 * EXPANDED + KEY_DIM)
    attention = 2 * pairs * (KEY_DIM + EXPANDED)
    if kind == "MixedChunkAttention":
        attention += 4 * length * KEY_DIM * EXPANDED
    return projections + attention


def compiled(layer, call):
    """Functions of the inputs for a forward pass and for all gradients."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        @tf.function(jit_compile=True)
        def forward(x):
            return call(x)

        @tf.function(jit_compile=True)
        def train(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = tf.reduce_sum(call(x))
            return tape.gradient(
                value, [x, *(w.value for w in layer.trainable_weights)]
            )

        return forward, train, lambda y: tf.nest.flatten(y)[0].numpy()
    if BACKEND == "jax":
        import jax

        def value(weights, x):
            with keras.StatelessScope(zip(layer.trainable_variables, weights)):
                return call(x)

        weights = [w.value for w in layer.trainable_variables]
        forward = jax.jit(value)
        gradient = jax.jit(jax.grad(lambda w, x: value(w, x).sum(), argnums=(0, 1)))
        return (
            lambda x: forward(weights, x),
            lambda x: gradient(weights, x),
            jax.block_until_ready,
        )
    import torch

    def forward(x):
        with torch.no_grad():
            return call(x)

    def train(x):
        x = x.clone().requires_grad_()
        weights = [w.value for w in layer.trainable_weights]
        return torch.autograd.grad(call(x).sum(), [x, *weights])

    def wait(y):
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return forward, train, wait


def median_seconds(function, wait, *arguments):
    wait(function(*arguments))  # compiles
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        wait(function(*arguments))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def product_rate(wait):
    """The best rate of a square float32 matrix product, operations a second."""
    rates = []
    for size in (1024, 2048):
        a = keras.ops.convert_to_tensor(np.ones((size, size), "float32"))
        seconds = median_seconds(keras.ops.matmul, wait, a, a)
        rates.append(2 * size**3 / seconds)
    return max(rates)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    about = dict(
        backend=BACKEND, keras=keras.__version__, commit=commit, machine=machine
    )
    rows = []
    with (arguments.output / f"layers-{BACKEND}.jsonl").open("w") as file:
        for name, layer in layers():
            for length in arguments.lengths:
                for row in measure(name, layer, length):
                    file.write(json.dumps({**row, **about}) + "\n")
                    rows.append(row)
                    print(format_row(row), flush=True)
    header = (
        f"Batch 1, width {WIDTH}, {BACKEND} on {machine}, commit {commit}.\n\n"
        "| layer | length | step | ms | share of the matrix product |\n"
        "|---|---|---|---|---|\n"
    )
    table = header + "\n".join(map(format_row, rows)) + "\n"
    (arguments.output / f"layers-{BACKEND}.md").write_text(table)


def measure(name, layer, length):
    def call(x):
        return call_layer(name, layer, x)

    x = keras.random.normal((1, length, WIDTH), seed=0)
    call(x)  # builds
    forward, train, wait = compiled(layer, call)
    for step, function, passes in (("forward", forward, 1), ("train", train, 3)):
        # Between the runs of a layer the machine's load may change, so the
        # product is measured anew beside each.
        rate = product_rate(wait)
        seconds = median_seconds(function, wait, x)
        share = passes * needed_operations(name, length) / seconds / rate
        yield dict(
            layer=name, length=length, step=step, seconds=seconds, share=round(share, 3)
        )


def format_row(row):
    return (
        f"| {row['layer']} | {row['length']} | {row['step']} "
        f"| {1e3 * row['seconds']:.1f} | {row['share']:.2f} |"
    )


if __name__ == "__main__":
    main()
