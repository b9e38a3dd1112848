"""Runs a SavedModel as TF Serving does: by TensorFlow's C API and its real messages.

    python run_served.py FOLDER SAMPLE

TF_LoadSessionFromSavedModel is the loader that the server links. Neither keras nor
keras_flash can be imported here. Prints the largest differences, by what was called.
"""

import concurrent.futures
import ctypes
import json
import pathlib
import sys

import numpy as np

for name in ("keras", "keras_flash", "jax", "torch"):
    assert name not in sys.modules
    sys.modules[name] = None  # importing it fails from here on

import tensorflow as tf  # noqa: E402  imports keras where it can
from tensorflow.core.protobuf import meta_graph_pb2  # noqa: E402
from tensorflow_serving.apis import prediction_log_pb2  # noqa: E402

LIBRARY = pathlib.Path(tf.__file__).parent / "libtensorflow_cc.so.2"


class Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("deallocator", ctypes.c_void_p),
    ]


class Output(ctypes.Structure):
    _fields_ = [("operation", ctypes.c_void_p), ("index", ctypes.c_int)]


class Session:
    """A loaded model: `run(signature, inputs)`, from any thread."""

    def __init__(self, folder):
        c = self.c = ctypes.CDLL(str(LIBRARY))
        for name in (
            "TF_NewStatus",
            "TF_NewGraph",
            "TF_NewSessionOptions",
            "TF_NewBuffer",
            "TF_LoadSessionFromSavedModel",
            "TF_GraphOperationByName",
            "TF_AllocateTensor",
            "TF_TensorData",
            "TF_Message",
        ):
            getattr(c, name).restype = ctypes.c_void_p
        c.TF_TensorByteSize.restype = ctypes.c_size_t
        c.TF_Dim.restype = ctypes.c_int64
        c.TF_AllocateTensor.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_size_t,
        ]
        c.TF_GraphOperationByName.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        for name in (
            "TF_TensorData",
            "TF_DeleteTensor",
            "TF_TensorByteSize",
            "TF_TensorType",
            "TF_NumDims",
            "TF_GetCode",
            "TF_Message",
        ):
            getattr(c, name).argtypes = [ctypes.c_void_p]
        c.TF_Dim.argtypes = [ctypes.c_void_p, ctypes.c_int]
        status = self.status()
        self.graph = ctypes.c_void_p(c.TF_NewGraph())
        meta_graph = ctypes.c_void_p(c.TF_NewBuffer())
        tags = (ctypes.c_char_p * 1)(b"serve")
        self.session = ctypes.c_void_p(
            c.TF_LoadSessionFromSavedModel(
                ctypes.c_void_p(c.TF_NewSessionOptions()),
                None,
                str(folder).encode(),
                tags,
                1,
                self.graph,
                meta_graph,
                status,
            )
        )
        self.check(status)
        found = Buffer.from_address(meta_graph.value)
        text = ctypes.string_at(found.data, found.length)
        self.signatures = meta_graph_pb2.MetaGraphDef.FromString(text).signature_def

    def status(self):
        return ctypes.c_void_p(self.c.TF_NewStatus())

    def check(self, status):
        if self.c.TF_GetCode(status):
            message = ctypes.c_char_p(self.c.TF_Message(status)).value
            raise RuntimeError(message.decode())

    def place(self, info):
        name, _, index = info.name.partition(":")
        operation = self.c.TF_GraphOperationByName(self.graph, name.encode())
        assert operation, info.name
        return Output(operation, int(index or 0))

    def run(self, name, inputs):
        c, signature, status = self.c, self.signatures[name], self.status()
        assert set(inputs) == set(signature.inputs)
        count = len(inputs)
        places, tensors = (Output * count)(), (ctypes.c_void_p * count)()
        for i, (key, x) in enumerate(inputs.items()):
            info = signature.inputs[key]
            x = np.asarray(x, tf.as_dtype(info.dtype).as_numpy_dtype, order="C")
            sizes = (ctypes.c_int64 * x.ndim)(*x.shape)
            places[i] = self.place(info)
            tensors[i] = c.TF_AllocateTensor(info.dtype, sizes, x.ndim, x.nbytes)
            ctypes.memmove(c.TF_TensorData(tensors[i]), x.ctypes.data, x.nbytes)
        names = list(signature.outputs)
        wanted = (Output * len(names))(
            *(self.place(signature.outputs[key]) for key in names)
        )
        results = (ctypes.c_void_p * len(names))()
        c.TF_SessionRun(
            self.session,
            None,
            places,
            tensors,
            count,
            wanted,
            results,
            len(names),
            None,
            0,
            None,
            status,
        )
        self.check(status)
        found = {key: self.array(result) for key, result in zip(names, results)}
        for tensor in [*tensors, *results]:
            c.TF_DeleteTensor(tensor)
        return found

    def array(self, tensor):
        c = self.c
        shape = [c.TF_Dim(tensor, i) for i in range(c.TF_NumDims(tensor))]
        text = ctypes.string_at(c.TF_TensorData(tensor), c.TF_TensorByteSize(tensor))
        dtype = tf.as_dtype(c.TF_TensorType(tensor)).as_numpy_dtype
        return np.frombuffer(text, dtype).reshape(shape)


def states(result):
    return {key: x for key, x in result.items() if key.startswith("state_")}


def zeros(session, batch_size):
    return {
        key: np.zeros(
            [batch_size, *(axis.size for axis in info.tensor_shape.dim[1:])],
            tf.as_dtype(info.dtype).as_numpy_dtype,
        )
        for key, info in session.signatures["prefill"].inputs.items()
        if key.startswith("state_")
    }


def score_prefill_decode(session, ids, wanted):
    """The largest difference of each signature to what the model gave."""
    length = ids.shape[1] - 3
    score = session.run("serving_default", {"token_ids": ids})["outputs"]
    found = {"serving_default": np.abs(score - wanted).max()}
    inputs = {"token_ids": ids[:, :length], "length": length}
    result = session.run("prefill", {**inputs, **zeros(session, len(ids))})
    found["prefill"] = np.abs(result["outputs"] - wanted[:, length - 1]).max()
    for at in range(length, ids.shape[1]):
        inputs = {"token_ids": ids[:, at : at + 1], **states(result)}
        result = session.run("decode", inputs)
        found[f"decode {at}"] = np.abs(result["outputs"] - wanted[:, at]).max()
    return max(map(float, found.values()))


def warm_up(session, folder):
    """How many requests of the folder's own warm-up were answered."""
    path = pathlib.Path(folder, "assets.extra/tf_serving_warmup_requests")
    count = 0
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        inputs = {key: tf.make_ndarray(x) for key, x in request.inputs.items()}
        outputs = session.run(request.model_spec.signature_name, inputs)
        assert all(np.isfinite(x).all() for x in outputs.values())
        count += 1
    return count


def main(folder, sample):
    session = Session(folder)
    with np.load(sample) as given:
        ids, wanted = given["ids"], given["outputs"]
    found = {
        f"batch of {size}": score_prefill_decode(session, ids[:size], wanted[:size])
        for size in (1, 2, 7, 64)
    }
    parts = [slice(i, i + 8) for i in range(0, 64, 8)] * 4
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        differences = pool.map(
            lambda part: score_prefill_decode(session, ids[part], wanted[part]), parts
        )
        found["8 threads at once"] = max(differences)
    print(json.dumps({"differences": found, "warm-up": warm_up(session, folder)}))


main(*sys.argv[1:])
