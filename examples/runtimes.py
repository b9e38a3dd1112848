"""How each format is run by its own runtime, without Keras.

A function for each format gives two functions: `call(name, inputs)` runs a signature
on a dict of arrays and gives a dict of arrays; `specs(name)` gives the shape and the
dtype of each of its inputs. A size that may be any is None.

ONNX and OpenVINO have one name for one value, so that there the state that comes out is
called `next_state_...`; here it has the name that it goes in by.
"""

import pathlib

import numpy as np


def of_saved_model(path):
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))

    def call(name, inputs):
        tensors = {key: tf.constant(x) for key, x in inputs.items()}
        outputs = loaded.signatures[name](**tensors)
        return {key: x.numpy() for key, x in outputs.items()}

    def specs(name):
        _, given = loaded.signatures[name].structured_input_signature
        return {
            key: (tuple(x.shape), x.dtype.as_numpy_dtype) for key, x in given.items()
        }

    return call, specs


def of_litert(path):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    runners = {
        name: interpreter.get_signature_runner(name)
        for name in interpreter.get_signature_list()
    }

    def call(name, inputs):
        return runners[name](**inputs)

    def specs(name):
        return {
            key: (_sizes(x["shape_signature"]), x["dtype"])
            for key, x in runners[name].get_input_details().items()
        }

    return call, specs


def of_onnx(path):
    import onnxruntime

    sessions = {
        name: onnxruntime.InferenceSession(str(file))
        for name, file in _files(path, ".onnx")
    }
    dtypes = {"tensor(float)": np.float32, "tensor(int32)": np.int32}

    def call(name, inputs):
        names = [x.name.removeprefix("next_") for x in sessions[name].get_outputs()]
        arrays = {key: np.asarray(x) for key, x in inputs.items()}
        return dict(zip(names, sessions[name].run(None, arrays)))

    def specs(name):
        return {
            x.name: (_sizes(x.shape), dtypes[x.type])
            for x in sessions[name].get_inputs()
        }

    return call, specs


def of_openvino(path):
    import openvino

    # Some processors would otherwise compute in bfloat16.
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    models = {
        name: openvino.compile_model(str(file), "CPU", options)
        for name, file in _files(path, ".xml")
    }

    def call(name, inputs):
        outputs = models[name](inputs)
        return {key.any_name.removeprefix("next_"): x for key, x in outputs.items()}

    def specs(name):
        return {
            x.any_name: (
                tuple(n.get_length() if n.is_static else None for n in x.partial_shape),
                x.element_type.to_dtype().type,
            )
            for x in models[name].inputs
        }

    return call, specs


def of_torch(path):
    import torch

    programs = {name: torch.export.load(file) for name, file in _files(path, ".pt2")}
    modules = {name: program.module() for name, program in programs.items()}

    def call(name, inputs):
        tensors = {key: torch.as_tensor(x) for key, x in inputs.items()}
        with torch.no_grad():
            return {key: x.numpy() for key, x in modules[name](tensors).items()}

    def specs(name):
        (given,), _ = programs[name].example_inputs
        return {key: (tuple(x.shape), x.numpy().dtype.type) for key, x in given.items()}

    return call, specs


def _files(path, suffix):
    """`(name, file)` of each signature; a file alone is `score`."""
    path = pathlib.Path(path)
    if path.is_dir():
        return [(file.stem, file) for file in sorted(path.glob(f"*{suffix}"))]
    return [("score", path)]


def _sizes(shape):
    return tuple(
        int(n) if isinstance(n, (int, np.integer)) and n >= 0 else None for n in shape
    )


RUNTIMES = {
    "tf_saved_model": of_saved_model,
    "litert": of_litert,
    "onnx": of_onnx,
    "openvino": of_openvino,
    "torch": of_torch,
}
