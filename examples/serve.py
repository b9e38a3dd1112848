"""Writes text with the demo's SavedModel: in this process, or by TF Serving.

    python examples/language_model.py                     # trains, writes the folder
    python examples/serve.py output/saved_model
    python examples/serve.py output/saved_model --warm-up

    docker run -p 8500:8500 -p 8501:8501 -e MODEL_NAME=shakespeare \
        -v "$PWD/output/saved_model:/models/shakespeare/1" \
        tensorflow/serving
    python examples/serve.py --grpc localhost:8500        # asks that server
    python examples/serve.py --rest http://localhost:8501

The folder needs TensorFlow alone; `--grpc` and `--warm-up` need
tensorflow-serving-api, `--rest` neither.
"""

import argparse
import json
import os
import pathlib
import urllib.request

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import generate_on_device as generating
import numpy as np
import runtimes

MODEL = "shakespeare"  # the name that the server knows it by
WARM_UP = "assets.extra/tf_serving_warmup_requests"
TIMEOUT = 60.0  # seconds of one request


def of_grpc(address):
    """`call` and `specs` of a model behind the gRPC API of TF Serving."""
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import get_model_metadata_pb2
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    stub = prediction_service_pb2_grpc.PredictionServiceStub(
        grpc.insecure_channel(address)
    )

    def call(name, inputs):
        result = stub.Predict(predict_request(name, inputs), timeout=TIMEOUT)
        return {key: tf.make_ndarray(x) for key, x in result.outputs.items()}

    request = get_model_metadata_pb2.GetModelMetadataRequest()
    request.model_spec.name = MODEL
    request.metadata_field.append("signature_def")
    answer = stub.GetModelMetadata(request, timeout=TIMEOUT)
    found = get_model_metadata_pb2.SignatureDefMap()
    answer.metadata["signature_def"].Unpack(found)
    specs = {
        key: (
            [axis.size for axis in info.tensor_shape.dim],
            tf.as_dtype(info.dtype).as_numpy_dtype,
        )
        for key, info in found.signature_def["prefill"].inputs.items()
    }
    return call, specs


def predict_request(name, inputs):
    """What the gRPC API takes for a call of the signature `name`."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL
    request.model_spec.signature_name = name
    for key, x in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(x))
    return request


def of_rest(url):
    """`call` and `specs` of a model behind the REST API of TF Serving."""
    base = f"{url}/v1/models/{MODEL}"

    def ask(url, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(url, data, timeout=TIMEOUT) as answer:
            return json.load(answer)

    def call(name, inputs):
        body = {
            "signature_name": name,
            "inputs": {key: np.asarray(x).tolist() for key, x in inputs.items()},
        }
        outputs = ask(f"{base}:predict", body)["outputs"]
        # Numbers come without their dtype; what goes in again has that of `specs`.
        return {
            key: np.asarray(x, specs[key][1] if key in specs else "float32")
            for key, x in outputs.items()
        }

    signatures = ask(f"{base}/metadata")["metadata"]["signature_def"]["signature_def"]
    specs = {
        key: (
            [int(axis["size"]) for axis in info["tensor_shape"].get("dim", [])],
            info["dtype"].removeprefix("DT_").lower().replace("float", "float32"),
        )
        for key, info in signatures["prefill"]["inputs"].items()
    }
    return call, specs


def warm_up(folder, batch_sizes=(1,)):
    """Puts requests into a SavedModel that TF Serving runs before it takes others."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    signatures = tf.saved_model.load(folder).signatures
    path = pathlib.Path(folder, WARM_UP)
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name in ("serving_default", "prefill", "decode"):
            _, given = signatures[name].structured_input_signature
            for batch_size in batch_sizes:
                inputs = {
                    key: np.ones(
                        [
                            batch_size if i == 0 else n or 1
                            for i, n in enumerate(x.shape)
                        ],
                        x.dtype.as_numpy_dtype,
                    )
                    for key, x in given.items()
                }
                log = prediction_log_pb2.PredictionLog()
                log.predict_log.request.CopyFrom(predict_request(name, inputs))
                writer.write(log.SerializeToString())
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--grpc", metavar="ADDRESS")
    parser.add_argument("--rest", metavar="URL")
    parser.add_argument("--warm-up", action="store_true")
    parser.add_argument("--prompt", default=generating.PROMPT)
    parser.add_argument("--count", type=int, default=generating.COUNT)
    parser.add_argument("--seed", type=int, default=generating.SEED)
    arguments = parser.parse_args()
    if (arguments.folder, arguments.grpc, arguments.rest).count(None) != 2:
        parser.error("give one of FOLDER, --grpc and --rest")
    if arguments.warm_up:
        print(warm_up(arguments.folder))
        return
    if arguments.folder:
        call, specs_of = runtimes.of_saved_model(arguments.folder)
        specs = specs_of("prefill")
    elif arguments.grpc:
        call, specs = of_grpc(arguments.grpc)
    else:
        call, specs = of_rest(arguments.rest)
    print(arguments.prompt, end="")
    prompt = arguments.prompt.encode()
    generating.show(
        generating.generate(call, specs, prompt, arguments.count, arguments.seed)
    )


if __name__ == "__main__":
    main()
