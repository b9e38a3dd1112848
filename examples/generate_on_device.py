"""Writes text with the demo's LiteRT file, byte by byte, at constant memory.

    python examples/language_model.py      # trains, and writes the file
    python examples/generate_on_device.py output/model.tflite

Needs ai-edge-litert and numpy, nothing else: no Keras, no TensorFlow.
"""

import argparse
import resource
import sys
import time

import numpy as np
import runtimes

PROMPT = "HAMLET.\nTo be, or not to be,"
COUNT = 400  # bytes
TEMPERATURE = 0.7
SEED = 0


def generate(call, specs, prompt, count, seed=SEED):
    """Yields byte after byte.

    Args:
        call: function of the name of a signature and a dict of arrays, that gives a
            dict of arrays.
        specs: `{name: (shape, dtype)}` of the inputs of `prefill`.
        prompt: bytes.
        count: how many bytes to write.
    """
    random = np.random.default_rng(seed)
    state = {
        name: np.zeros((1, *shape[1:]), dtype)
        for name, (shape, dtype) in specs.items()
        if name.startswith("state_")
    }
    piece = np.frombuffer(prompt, "uint8").astype("int32")[None]
    name, inputs = "prefill", {"token_ids": piece, "length": np.int32(piece.size)}
    for _ in range(count):
        result = call(name, {**inputs, **state})
        state = {key: x for key, x in result.items() if key.startswith("state_")}
        logits = result["outputs"][0].astype("float64") / TEMPERATURE
        weights = np.exp(logits - logits.max())
        token = random.choice(len(weights), p=weights / weights.sum())
        yield int(token)
        name, inputs = "decode", {"token_ids": np.array([[token]], "int32")}


def show(tokens):
    """Writes them as they come, then how long each took and the memory."""
    megabytes, seconds, start = [], [], time.perf_counter()
    for token in tokens:
        seconds.append(time.perf_counter() - start)
        megabytes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        sys.stdout.write(chr(token))
        sys.stdout.flush()
        start = time.perf_counter()
    # The first are the prompt, and the first call of `decode`.
    print(
        f"\n\n{1000 * np.median(seconds[2:]):.2f} ms a byte; peak memory "
        f"{megabytes[2]:.1f} MB after 3 bytes, {megabytes[-1]:.1f} after "
        f"{len(megabytes)}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    call, specs = runtimes.of_litert(arguments.file)
    prompt = arguments.prompt.encode()
    print(arguments.prompt, end="")
    show(generate(call, specs("prefill"), prompt, arguments.count, arguments.seed))


if __name__ == "__main__":
    main()
