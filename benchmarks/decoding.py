"""Time of one generated token: by position, against the prefix, against GPT-2.

    KERAS_BACKEND=jax python benchmarks/decoding.py            # one backend
    KERAS_BACKEND=jax python benchmarks/decoding.py --publish  # its rows in README.md
    KERAS_BACKEND=torch python benchmarks/decoding.py --layers 1

torch.compile takes minutes a program, hence fewer layers there. Needs the extra `nlp`.
Every time is a median, of steps that take turns with what they are compared with, in
one process. Both are compiled: by XLA, the loop over tokens too, or by torch.compile.
Writes one JSON line a row to benchmarks/results/decoding-BACKEND.jsonl.
"""

import argparse
import pathlib

import harness
import keras
import keras_hub
import numpy as np
from harness import BACKEND

import keras_flash

VOCABULARY_SIZE, WIDTH = 256, 512
LAYERS = 4  # of GPT-2 and Flowformer; FLASH has twice as many, of half the size
NEAR, FAR = 1_024, 65_536  # positions
PREFIX = 4_096
CACHE = 16_384  # tokens in the cache of GPT-2
STEPS, ROUNDS, SECONDS = 20, 9, 20  # tokens in a turn, the least of turns and of time


def flash():
    """Two layers are of the size of one of the others."""
    backbone = keras_flash.FLASHBackbone(
        VOCABULARY_SIZE, num_layers=2 * LAYERS, hidden_dim=WIDTH, causal=True
    )
    return keras_flash.FLASHCausalLM(backbone)


def flowformer():
    backbone = keras_flash.FlowformerBackbone(
        VOCABULARY_SIZE,
        num_layers=LAYERS,
        num_heads=8,
        hidden_dim=WIDTH,
        intermediate_dim=4 * WIDTH,
        causal=True,
    )
    return keras_flash.FlowformerCausalLM(backbone)


def demo():
    """The size of examples/language_model.py."""
    backbone = keras_flash.FLASHBackbone(
        VOCABULARY_SIZE, num_layers=4, hidden_dim=128, chunk_size=128, causal=True
    )
    return keras_flash.FLASHCausalLM(backbone)


def gpt2():
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY_SIZE,
        num_layers=LAYERS,
        num_heads=8,
        hidden_dim=WIDTH,
        intermediate_dim=4 * WIDTH,
        max_sequence_length=CACHE,
    )
    return keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)


def compiled(model, function):
    """`function` of tensors, compiled, with the weights of the model as they are."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    if BACKEND == "jax":
        import jax

        @jax.jit
        def stateless(weights, *arguments):
            with keras.StatelessScope(zip(model.variables, weights)):
                return function(*arguments)

        weights = [variable.value for variable in model.variables]
        return lambda *arguments: stateless(weights, *arguments)
    import torch

    return torch.no_grad()(torch.compile(function, dynamic=False))


def stepper(model):
    """A function of a state that generates STEPS tokens, and the state at NEAR.

    Greedily, in one compiled loop, as `generate` does; on torch in a loop of Python
    around a compiled step, likewise.
    """
    prompt = keras_flash.StreamingModel(model)
    state = prompt.get_initial_state(1)
    for _ in range(NEAR // 256):  # in pieces
        _, state = prompt.stream(token_inputs(256), state)
    mask = keras.ops.ones((1, 1), "int32")

    def step(token, state):
        inputs = {"token_ids": token, "padding_mask": mask}
        logits, state = streaming.stream(inputs, state)
        return keras.ops.cast(keras.ops.argmax(logits, axis=-1), "int32"), state

    streaming = keras_flash.StreamingModel(model, jit_compile=BACKEND == "torch")
    loop = in_a_loop(model, step)
    token = keras.ops.convert_to_tensor([[7]], "int32")
    return lambda state: loop(token, state), state


def in_a_loop(model, step):
    """`step` STEPS times over its own results: one program, but on torch."""

    def loop(*carry):
        if BACKEND != "torch":
            return keras.ops.fori_loop(0, STEPS, lambda _, c: step(*c), carry)
        for _ in range(STEPS):
            carry = step(*carry)
        return carry

    return loop if BACKEND == "torch" else compiled(model, loop)


def token_inputs(length):
    ids = np.random.default_rng(0).integers(0, VOCABULARY_SIZE, (1, length))
    return {"token_ids": ids.astype("int32"), "padding_mask": np.ones((1, length))}


def moved(state, distance):
    """The state of as many tokens more, of whole chunks: what it holds is the same."""
    if not isinstance(state, dict):
        return state
    return {
        key: x + distance if key == "position" else moved(x, distance)
        for key, x in state.items()
    }


def in_turn(*functions):
    """Median seconds of each function."""
    return harness.in_turn(dict(enumerate(functions)), ROUNDS, SECONDS).values()


def size_of(state):
    return sum(
        int(np.prod(x.shape))
        * np.dtype(keras.backend.standardize_dtype(x.dtype)).itemsize
        for x in keras.tree.flatten(state)
    )


def by_position(model, steps, near):
    """A token at FAR over a token at NEAR."""
    far = moved(near, FAR - NEAR)
    first, second = in_turn(lambda: steps(near), lambda: steps(far))
    return dict(
        row="position",
        token_ms=1e3 * first / STEPS,
        far_over_near=second / first,
    )


def against_prefix(model, steps, state):
    """Computing the whole prefix again, over one token from the state."""
    inputs = keras.tree.map_structure(
        lambda x: keras.ops.convert_to_tensor(x, "int32"), token_inputs(PREFIX)
    )
    forward = compiled(model, lambda ids, mask: last_logits(model, ids, mask))
    token, again = in_turn(
        lambda: steps(state),
        lambda: forward(inputs["token_ids"], inputs["padding_mask"]),
    )
    return dict(
        row="prefix",
        token_ms=1e3 * token / STEPS,
        prefix_ms=1e3 * again,
        times_faster=again / (token / STEPS),
    )


def last_logits(model, ids, mask):
    return model({"token_ids": ids, "padding_mask": mask})[:, -1]


def against_gpt2(model, steps, state):
    """A token of GPT-2 with a cache of CACHE tokens, over one from the state."""
    peer = gpt2()
    cache = keras.ops.zeros((1, LAYERS, 2, CACHE, 8, WIDTH // 8))
    token = keras.ops.convert_to_tensor([[7]], "int32")

    def call(token, cache, index):
        logits, _, cache = peer.call_with_cache(token, cache, index)
        token = keras.ops.cast(keras.ops.argmax(logits, axis=-1), "int32")
        return token, cache, index + 1

    index = keras.ops.convert_to_tensor(CACHE - STEPS - 1, "int32")
    loop = in_a_loop(peer, compiled(peer, call) if BACKEND == "torch" else call)
    ours, theirs = in_turn(lambda: steps(state), lambda: loop(token, cache, index))
    return dict(
        row="gpt2",
        token_ms=1e3 * ours / STEPS,
        gpt2_ms=1e3 * theirs / STEPS,
        times_faster=theirs / ours,
        state_bytes=size_of(state),
        cache_bytes=size_of(cache),
        parameters=model.count_params(),
        gpt2_parameters=peer.count_params() - CACHE * WIDTH,  # less its positions
    )


ROWS = {
    "FLASH": (flash, (by_position, against_prefix, against_gpt2)),
    "Flowformer": (flowformer, (by_position, against_prefix, against_gpt2)),
    "FLASH of the demo": (demo, (against_prefix,)),
}


def measure():
    for name, (make, rows) in ROWS.items():
        model = make()
        steps, state = stepper(model)
        for row in rows:
            yield {"model": name, **row(model, steps, state)}


def table(rows):
    """The rows of all backends, in Markdown."""
    lines = [
        f"Batch 1, width {WIDTH}, vocabulary {VOCABULARY_SIZE}, float32, compiled, "
        f"{rows[0]['machine']}; FLASH, chunk 256, has twice the layers of the others, "
        "of half the size.",
        "",
        f"| model | backend | layers | ms a token | at {FAR:,} over at {NEAR:,} "
        f"| times faster than {PREFIX:,} tokens again "
        f"| times faster than GPT-2 at {CACHE:,} "
        "| its cache over our state |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = sorted(rows, key=lambda row: row["model"])
    found = {(row["model"], row["backend"], row["row"]): row for row in rows}
    for model, backend in dict.fromkeys((r["model"], r["backend"]) for r in rows):
        kinds = [found.get((model, backend, k)) for k in ("position", "prefix", "gpt2")]
        position, prefix, peer = kinds
        cells = [
            model,
            backend,
            layers_of(model, position or prefix),
            f"{(position or prefix)['token_ms']:.1f}",
            f"{position['far_over_near']:.2f}" if position else "",
            f"{prefix['times_faster']:.0f}" if prefix else "",
            f"{peer['times_faster']:.1f}" if peer else "",
            f"{peer['cache_bytes'] / peer['state_bytes']:.0f}" if peer else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def layers_of(model, row):
    if model.endswith("demo"):
        return "4"
    return str(2 * row["layers"] if model == "FLASH" else row["layers"])


def main():
    global LAYERS, NEAR, FAR, PREFIX, CACHE, WIDTH, STEPS, ROUNDS, SECONDS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny, to see it run")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--publish", action="store_true", help="renew README.md")
    parser.add_argument("--output", type=pathlib.Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    if arguments.smoke:
        NEAR, FAR, PREFIX, CACHE, WIDTH = 256, 512, 64, 128, 16
        STEPS, ROUNDS, SECONDS = 2, 1, 0
    LAYERS = arguments.layers
    rows = ({**row, "layers": LAYERS} for row in measure())
    harness.write("decoding", rows, arguments.output)
    found = table(harness.read("decoding", arguments.output))
    print(found)
    if arguments.publish:
        harness.publish("decoding table", found)


if __name__ == "__main__":
    main()
