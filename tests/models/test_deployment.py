"""What servers and phones ask of an artefact."""

import concurrent.futures
import http.server
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import threading
import venv

import keras
import numpy as np
import pytest

import keras_flash
from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention
from keras_flash import ScaleNorm
from keras_flash import StreamingModel
from keras_flash.models.exporting import WRITTEN_BY
from tests.helpers import BACKEND
from tests.helpers import normal
from tests.helpers import set_weights
from tests.helpers import to_numpy

ROOT = pathlib.Path(__file__).parents[2]
saved_model = pytest.mark.skipif(
    BACKEND not in WRITTEN_BY["tf_saved_model"], reason="writes no SavedModel"
)
any_size_on_a_phone = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="the file is the same wherever it is made"
)


def bytes_model():
    """A causal model of bytes, with both kinds of constant state."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = keras.layers.Embedding(256, 16)(ids)
    x = x + MixedChunkAttention(8, chunk_size=4, causal=True)(x)
    x = x + FlowAttention(2, 8, causal=True)(x, x)
    model = keras.Model(ids, keras.layers.Dense(256)(x))
    set_weights(model)
    return model


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The model, and the folder with its SavedModel and requests to warm it up."""
    import serve

    model = bytes_model()
    folder = tmp_path_factory.mktemp("served") / "model"
    keras_flash.export(StreamingModel(model), folder)
    serve.warm_up(str(folder), batch_sizes=(1, 4))
    return model, folder


@saved_model
@pytest.mark.xdist_group("served")
def test_the_loader_of_tf_serving(served, tmp_path):
    """By TensorFlow's C API: batches of 1 to 64, 8 threads, the warm-up."""
    model, folder = served
    ids = np.random.default_rng(0).integers(0, 256, (64, 14)).astype("int32")
    outputs = to_numpy(model.predict_on_batch(ids))
    np.savez(tmp_path / "sample.npz", ids=ids, outputs=outputs)
    script = ROOT / "tests/models/run_served.py"
    printed = run(sys.executable, script, folder, tmp_path / "sample.npz")
    found = json.loads(printed.splitlines()[-1])
    assert found["warm-up"] == 6  # three signatures, two sizes
    assert len(found["differences"]) == 5
    assert max(found["differences"].values()) < 1e-5 * np.abs(outputs).max()


@pytest.fixture
def loaded(served):
    """`(signatures, model)`: what a server that holds the folder computes with."""
    import tensorflow as tf

    model, folder = served
    return tf.saved_model.load(str(folder)), model


@pytest.fixture
def grpc_server(loaded):
    """The gRPC service of TF Serving, with its own messages, on a real socket."""
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import get_model_metadata_pb2
    from tensorflow_serving.apis import predict_pb2
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            assert request.model_spec.name == "shakespeare"
            function = loaded[0].signatures[request.model_spec.signature_name]
            inputs = {key: tf.make_ndarray(x) for key, x in request.inputs.items()}
            outputs = function(**{key: tf.constant(x) for key, x in inputs.items()})
            response = predict_pb2.PredictResponse()
            for key, x in outputs.items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(x.numpy()))
            return response

        def GetModelMetadata(self, request, context):
            found = get_model_metadata_pb2.SignatureDefMap()
            for name, inputs in signatures_of(loaded[0]).items():
                for key, spec in inputs.items():
                    info = found.signature_def[name].inputs[key]
                    info.dtype = spec.dtype.as_datatype_enum
                    for n in spec.shape:
                        info.tensor_shape.dim.add(size=-1 if n is None else n)
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.metadata["signature_def"].Pack(found)
            return response

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Service(), server
    )
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(0)


@pytest.fixture
def rest_server(loaded):
    """The REST service of TF Serving: its paths and its JSON, on a real socket."""
    import tensorflow as tf
    from tensorflow.core.framework import types_pb2

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/v1/models/shakespeare/metadata"
            found = {
                name: {
                    "inputs": {
                        key: {
                            "dtype": types_pb2.DataType.Name(
                                spec.dtype.as_datatype_enum
                            ),
                            "tensor_shape": {
                                "dim": [
                                    {"size": str(-1 if n is None else n)}
                                    for n in spec.shape
                                ]
                            },
                        }
                        for key, spec in inputs.items()
                    }
                }
                for name, inputs in signatures_of(loaded[0]).items()
            }
            self.answer({"metadata": {"signature_def": {"signature_def": found}}})

        def do_POST(self):
            assert self.path == "/v1/models/shakespeare:predict"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = body["signature_name"]
            specs = signatures_of(loaded[0])[name]
            outputs = loaded[0].signatures[name](
                **{
                    key: tf.constant(x, specs[key].dtype)
                    for key, x in body["inputs"].items()
                }
            )
            self.answer(
                {"outputs": {key: x.numpy().tolist() for key, x in outputs.items()}}
            )

        def answer(self, found):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def signatures_of(loaded):
    return {
        name: function.structured_input_signature[1]
        for name, function in loaded.signatures.items()
    }


@saved_model
@pytest.mark.xdist_group("served")
@pytest.mark.parametrize("server", ["grpc_server", "rest_server"])
def test_the_clients_of_tf_serving(server, loaded, request):
    """Both write what the model itself writes, byte after byte."""
    import generate_on_device as generating
    import serve

    address = request.getfixturevalue(server)
    connect = serve.of_grpc if server == "grpc_server" else serve.of_rest
    call, specs = connect(address)
    prompt, count = b"HAMLET.", 8
    written = bytes(generating.generate(call, specs, prompt, count))
    assert written == written_by(loaded[1], prompt, count)


def written_by(model, prompt, count):
    """The same draws from the model called on all bytes, one after another."""
    import generate_on_device as generating

    def call(name, inputs):
        tokens.extend(inputs["token_ids"][0])
        outputs = model.predict_on_batch(np.array([tokens]))
        return {"outputs": to_numpy(outputs)[:, -1]}

    tokens = []
    return bytes(generating.generate(call, {}, prompt, count))


@any_size_on_a_phone
def test_writes_on_a_phone(tmp_path):
    """In an environment of ai-edge-litert and numpy alone; memory stays."""
    model = bytes_model()
    path = tmp_path / "model.tflite"
    keras_flash.export(StreamingModel(model), path, "litert")
    python = environment(tmp_path / "environment", "ai-edge-litert", "numpy")
    script = ROOT / "examples/generate_on_device.py"
    missing = "import importlib.util as u; print(u.find_spec('tensorflow'))"
    assert run(python, "-c", missing).strip() == "None"
    printed = run(python, script, path, "--prompt", "HAMLET.", "--count", 300)
    assert printed.startswith("HAMLET.")
    expected = written_by(model, b"HAMLET.", 8).decode("latin-1")
    assert printed.removeprefix("HAMLET.").startswith(expected)
    (figures,) = re.findall(
        r"memory (.*) MB after 3 bytes, (.*) after 300$", printed.strip()
    )
    early, late = map(float, figures)
    assert 0 <= late - early < 2.0


def environment(folder, *packages):
    """Makes a Python with these packages and what they need; gives its executable."""
    venv.create(folder, with_pip=False, symlinks=True)
    (target,) = folder.glob("lib/python*/site-packages")
    for package in packages:
        files = importlib.metadata.files(package)
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            source = importlib.metadata.distribution(package).locate_file(top)
            (target / top).symlink_to(source)
    return folder / "bin/python"


LENGTH, WIDTH, NORM, LARGEST = 8192, 32, 1e4, 1e4
IN_HALF_PRECISION = {
    "FlowAttention": lambda x, causal: FlowAttention(2, 16, causal=causal)(x, x),
    "MixedChunkAttention": lambda x, causal: MixedChunkAttention(16, causal=causal)(x),
    "GatedAttentionUnit": lambda x, causal: GatedAttentionUnit(16, causal=causal)(x),
}
LARGEST_OF = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
interpreter = Interpreter(sys.argv[1], experimental_preserve_all_tensors=True)
interpreter.allocate_tensors()
(given,) = interpreter.get_input_details()
interpreter.set_tensor(given["index"], np.load(sys.argv[2]))
interpreter.invoke()
sizes = []
for details in interpreter.get_tensor_details():
    try:
        x = interpreter.get_tensor(details["index"])
    except ValueError:  # an operator of its own keeps it
        continue
    if x.dtype == np.float32 and x.size:
        sizes.append(float(np.abs(x).max()))
print(len(sizes), np.max(sizes))
"""


@any_size_on_a_phone
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", IN_HALF_PRECISION)
def test_nothing_outgrows_float16_on_a_phone(name, causal, tmp_path):
    """No tensor of the graph is above 1e4, whose GPU may sum in float16."""
    x = keras.Input((LENGTH, WIDTH))
    layer = IN_HALF_PRECISION[name]
    model = keras.Model(x, x + layer(ScaleNorm()(x), causal))
    set_weights(model)
    path = tmp_path / "model.tflite"
    keras_flash.export(model, path, "litert", batch_size=1, length=LENGTH)
    inputs = normal(1, LENGTH, WIDTH).astype("float32")
    inputs *= NORM / np.linalg.norm(inputs, axis=-1, keepdims=True)
    np.save(tmp_path / "inputs.npy", inputs)
    printed = run(sys.executable, "-c", LARGEST_OF, path, tmp_path / "inputs.npy")
    count, largest = map(float, printed.split())
    assert count > 20
    assert np.abs(inputs).max() <= largest <= LARGEST
