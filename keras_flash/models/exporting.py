"""Writes a model to a file that runs without Keras."""

import contextlib
import os
import pathlib
import tempfile

import keras

from keras_flash.layers.validation import check_positive_int
from keras_flash.models import jax_exporting
from keras_flash.models import torch_exporting
from keras_flash.models.signatures import signatures_of
from keras_flash.models.streaming_model import StreamingModel
from keras_flash.models.streaming_model import check_functional

SUFFIXES = {  # of a file; a SavedModel is a folder
    "tf_saved_model": "",
    "litert": ".tflite",
    "onnx": ".onnx",
    "openvino": ".xml",
    "torch": ".pt2",
}
HOLDS_SEVERAL = ("tf_saved_model", "litert")  # signatures in one artefact
# By format, the backends that write it, and the sizes that must be given there.
WRITTEN_BY = {
    "tf_saved_model": {"tensorflow": (), "jax": ()},
    "litert": {
        "tensorflow": (),
        "jax": ("batch_size", "length"),
        "torch": ("batch_size", "length"),
    },
    "onnx": {"tensorflow": (), "jax": ("length",), "torch": ()},
    "openvino": {"tensorflow": (), "torch": ()},
    "torch": {"torch": ()},
}


def export(
    model,
    filepath,
    format="tf_saved_model",
    batch_size=None,
    length=None,
    max_length=None,
    **options,
):
    """Writes a model to an artefact that runs without Keras.

    A `keras.Model` is written as it is, with one signature:

    - `score`: the inputs of the model `(b, t, ...)`, by name, to `outputs`. It is
      `serving_default` too.

    A `StreamingModel` has two more, and leaves inputs whose names end with `mask` out,
    since every token counts:

    - `prefill`: the same, a `length` as in `StreamingModel.stream` and a state, to the
      `outputs` `(b, ...)` of the last token that counts and the state after it.
    - `decode`: inputs of one token `(b, 1, ...)` and a state, to `outputs` `(b, ...)`
      and the state after it.

    A state is all tensors whose names begin with `state_`. Before the first token they
    are zeros.

    Args:
        model: functional or sequential `keras.Model`, or a `StreamingModel` of one.
        filepath: of a folder for `"tf_saved_model"`; else of a file that ends in
            `.tflite`, `.onnx`, `.xml` or `.pt2`. The last three hold one signature: a
            `StreamingModel` becomes a folder with a file for each. Written whole or
            not at all; other files in a folder that is there already stay.
        format: `"tf_saved_model"` (on TensorFlow and JAX), `"litert"` (of built-in
            operators only), `"onnx"`, `"openvino"` (on TensorFlow and torch) or
            `"torch"` (on torch). Defaults to `"tf_saved_model"`.
        batch_size: int, or `None` for any.
        length: int, the length of what is scored and of a piece of a prompt, or
            `None` for any. JAX writes ONNX with a length alone, and JAX and torch
            write LiteRT with both sizes alone. On torch any means two or more.
        max_length: int, room in the key/value caches of layers that have one, as in
            `StreamingModel.get_initial_state`.
        **options: for `"litert"` on TensorFlow and JAX, attributes of
            `tf.lite.TFLiteConverter`, as `keras.Model.export` takes them:
            `optimizations`, `representative_dataset`, `target_spec` (a dict).

    Raises:
        ValueError: for a model of another kind, for a format that this backend cannot
            write, by a message with those that can; for a path of another kind, a size
            that is missing or not positive, and an option that is none.
    """
    path = pathlib.Path(filepath)
    keras_model = model.model if isinstance(model, StreamingModel) else model
    check_functional(keras_model, "exported")
    _check_format(format, {"batch_size": batch_size, "length": length})
    signatures = signatures_of(model, batch_size, length, max_length)
    in_one = len(signatures) == 1 or format in HOLDS_SEVERAL
    suffix = SUFFIXES[format] if in_one else ""
    _check_path(path, suffix)
    if format == "litert":
        _check_litert(keras_model, options)
    elif options:
        raise ValueError(
            '`options` must be left out but for format="litert". '
            f"Received: {', '.join(options)}"
        )
    with whole(path) as new:
        if in_one:
            _write(keras_model, signatures, new, format, options)
        else:
            new.mkdir()
            for name, signature in signatures.items():
                file = new / f"{name}{SUFFIXES[format]}"
                _write(keras_model, {name: signature}, file, format, options)


def _write(model, signatures, path, format, options):
    backend = keras.backend.backend()
    if format == "tf_saved_model":
        _write_saved_model(model, signatures, path)
    elif format == "litert":
        if backend == "torch":
            torch_exporting.write_several(model, signatures, path)
        else:
            _write_litert(model, signatures, path, options)
    else:
        (signature,) = signatures.values()
        if backend == "torch":
            torch_exporting.write_one(model, signature, path, format)
        elif backend == "jax":
            jax_exporting.write_onnx(signature, path)
        else:
            _write_one(model, signature, path, format)


def _check_format(format, sizes):
    backend = keras.backend.backend()
    writers = WRITTEN_BY.get(format, {})
    if backend not in writers:
        there = [
            f"{x!r} on {' and '.join(names)}"
            for x, names in WRITTEN_BY.items()
            if format == x or (format not in WRITTEN_BY and backend in names)
        ]
        raise ValueError(
            f"`format` must be one that this backend writes. There is "
            f"{', '.join(there)}; a .keras file that one backend saved loads on "
            f"another. Received: format={format!r} on {backend}"
        )
    for name, size in sizes.items():
        if size is not None:
            check_positive_int(name, size)
        elif name in writers[backend]:
            raise ValueError(
                f"`{name}` must be given for {format!r} on {backend}; tensorflow "
                f"writes it for any size. Received: {name}=None"
            )


def _check_path(path, suffix):
    if suffix and path.suffix != suffix:
        raise ValueError(
            f'`filepath` must end in "{suffix}". Received: filepath={str(path)!r}'
        )
    if path.exists() and path.is_dir() == bool(suffix):
        raise ValueError(
            f"`filepath` must not be a {'folder' if suffix else 'file'} that is "
            f"there already. Received: filepath={str(path)!r}"
        )


def _check_litert(model, options):
    """What is refused before any work."""
    if keras.backend.backend() == "torch":
        unknown = list(options)
    else:
        import tensorflow as tf

        converter = tf.lite.TFLiteConverter([])
        unknown = [name for name in options if not hasattr(converter, name)]
    if unknown:
        raise ValueError(
            "`options` must be attributes of tf.lite.TFLiteConverter on tensorflow "
            f"and jax, none on torch. Received: {', '.join(unknown)}"
        )
    for layer in model._flatten_layers(include_self=False):
        config = getattr(layer, "quantization_config", None)
        if config is not None and (
            config.mode != "int8" or config.activation_quantizer is not None
        ):
            raise ValueError(
                "A quantized model must have weights in int8 alone to be written for "
                "LiteRT: model.quantize(config=keras.quantizers.Int8QuantizationConfig"
                "(activation_quantizer=None)). "
                f"Received: layer={layer.path!r} in {config.mode}"
            )


@contextlib.contextmanager
def whole(path):
    """A place beside `path` to write to; it becomes `path` if nothing is raised.

    Files of another name in a folder that is there already are left, as Keras does.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
        folder = pathlib.Path(folder)
        new = folder / path.name
        yield new
        _move_into(folder, path.parent)


def _move_into(folder, target):
    """Moves what is in a folder into another that may hold some of it already."""
    # What names others comes last: saved_model.pb, and an .xml file after its .bin.
    for part in sorted(folder.iterdir(), key=lambda part: (part.is_file(), part.name)):
        place = target / part.name
        if part.is_dir() and place.is_dir():
            _move_into(part, place)
        else:
            os.replace(part, place)


def _input_specs(signature):
    return {
        name: keras.InputSpec(shape=shape, dtype=dtype, name=name)
        for name, (shape, dtype) in signature.specs.items()
    }


def _write_saved_model(model, signatures, path):
    archive = keras.export.ExportArchive()
    on_jax = keras.backend.backend() == "jax"
    archive.track(jax_exporting.Weights(model) if on_jax else model)
    options = {}
    for name, signature in signatures.items():
        if on_jax:
            shapes = jax_exporting.polymorphic_shapes(signature)
            options["jax2tf_kwargs"] = {"polymorphic_shapes": shapes}
        specs = [_input_specs(signature)]
        archive.add_endpoint(name, signature.function, specs, **options)
    archive.write_out(str(path), verbose=False)


def _write_litert(model, signatures, path, options):
    """Of built-in operators only: a runtime on a phone has no others."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        _write_saved_model(model, signatures, folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=list(signatures)
        )
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        for name, value in options.items():
            if name == "target_spec":
                for key, part in value.items():
                    setattr(converter.target_spec, key, part)
            else:
                setattr(converter, name, value)
        path.write_bytes(converter.convert())


def _write_one(model, signature, path, format):
    """By the exporters of Keras, which take a model."""
    signature_of_input = [_input_specs(signature)]
    _Endpoint(model, signature).export(
        str(path), format, verbose=False, input_signature=signature_of_input
    )


class _Endpoint(keras.Model):
    """A signature as a model, for the exporters of Keras."""

    def __init__(self, model, signature):
        super().__init__(name="endpoint")
        self.model = model  # its weights are tracked
        self.signature = signature
        self.built = True

    def call(self, inputs):
        outputs = self.signature.function(inputs)
        return {self.signature.next_name(name): x for name, x in outputs.items()}
