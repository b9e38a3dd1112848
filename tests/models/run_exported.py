"""Runs what a streamed model was exported to; imports neither keras nor the package.

    python run_exported.py FORMAT PATH SAMPLE

Prints the largest difference of each signature to the outputs of the sample.
"""

import json
import sys

import numpy as np

for name in ("keras", "keras_flash", "jax", "torch"):
    sys.modules[name] = None  # importing it fails from here on


def of_saved_model(path):
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    assert "serving_default" in loaded.signatures

    def call(name, inputs):
        inputs = {key: tf.constant(x) for key, x in inputs.items()}
        return {k: x.numpy() for k, x in loaded.signatures[name](**inputs).items()}

    def specs(name):
        found = loaded.signatures[name].structured_input_signature[1]
        return {
            k: (x.shape.as_list(), x.dtype.as_numpy_dtype) for k, x in found.items()
        }

    return call, specs


def of_litert(path):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path)

    def call(name, inputs):
        return interpreter.get_signature_runner(name)(**inputs)

    def specs(name):
        found = interpreter.get_signature_runner(name).get_input_details()
        return {k: (list(x["shape_signature"]), x["dtype"]) for k, x in found.items()}

    return call, specs


def main(format, path, sample):
    call, specs = {"tf_saved_model": of_saved_model, "litert": of_litert}[format](path)
    with np.load(sample) as given:
        ids, wanted, length = given["ids"], given["outputs"], int(given["length"])
    found = {}

    def compare(name, result, at):
        difference = float(np.abs(result["outputs"] - wanted[:, at]).max())
        found[name] = max(found.get(name, 0.0), difference)

    compare("score", call("score", {"token_ids": ids[:, :length]}), slice(length))
    result = {
        name: np.zeros((len(ids), *shape[1:]), dtype)
        for name, (shape, dtype) in specs("prefill").items()
        if name.startswith("state_")
    }
    assert all(specs("decode")[name] == specs("prefill")[name] for name in result)
    end = 0
    for name, count in (("prefill", length), ("prefill of a part", length - 2)):
        piece = ids[:, end : end + length]
        end += count
        state = {k: x for k, x in result.items() if k.startswith("state_")}
        inputs = {"token_ids": piece, "length": np.int32(count), **state}
        result = call("prefill", inputs)
        compare(name, result, end - 1)
    for at in range(end, ids.shape[1]):
        state = {k: x for k, x in result.items() if k.startswith("state_")}
        result = call("decode", {"token_ids": ids[:, at : at + 1], **state})
        compare("decode", result, at)
    print(json.dumps(found))


main(*sys.argv[1:])
