"""Runs what a model was exported to; imports neither keras nor the package.

    python run_exported.py FORMAT PATH SAMPLE

Prints the largest difference of each signature to the outputs of the sample.
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))


def main(format, path, sample):
    for name in ("keras", "keras_flash", "jax", *({"torch"} - {format})):
        assert name not in sys.modules
        sys.modules[name] = None  # importing it fails from here on
    import runtimes

    call, specs = runtimes.RUNTIMES[format](path)
    with np.load(sample) as given:
        inputs = {name: given[name] for name in given.files}
    wanted, length = inputs.pop("outputs"), int(inputs.pop("length"))
    found = {}

    def compare(name, result, at):
        assert "outputs" in result, list(result)
        difference = float(np.abs(result["outputs"] - wanted[:, at]).max())
        found[name] = max(found.get(name, 0.0), difference)

    first = {name: x[:, :length] for name, x in inputs.items()}
    compare("score", call("score", first), slice(length))
    if len(inputs) == 1:
        stream(call, specs, inputs["token_ids"], length, compare)
    print(json.dumps(found))


def stream(call, specs, ids, length, compare):
    """A whole piece, a part of one, and the rest token by token."""
    state = {
        name: np.zeros((len(ids), *shape[1:]), dtype)
        for name, (shape, dtype) in specs("prefill").items()
        if name.startswith("state_")
    }
    assert all(specs("decode")[name] == specs("prefill")[name] for name in state)
    end = 0
    for name, count in (("prefill", length), ("prefill of a part", length - 2)):
        piece = ids[:, end : end + length]
        end += count
        result = call(
            "prefill", {"token_ids": piece, "length": np.int32(count), **state}
        )
        assert set(states(result)) == set(state)
        compare(name, result, end - 1)
        state = states(result)
    for at in range(end, ids.shape[1]):
        result = call("decode", {"token_ids": ids[:, at : at + 1], **state})
        compare("decode", result, at)
        state = states(result)


def states(result):
    return {name: x for name, x in result.items() if name.startswith("state_")}


main(*sys.argv[1:])
