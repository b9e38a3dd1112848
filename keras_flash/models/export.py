"""Artefacts of a model that streams, with a signature for each way to call it.

One scores a whole sequence, one takes in a piece of a prompt, one decodes a token; the
last two take a state and give the next.
"""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
import typing

import keras
from keras import ops
from keras import tree

from keras_flash.layers.validation import check_positive_int

FORMATS = {"tensorflow": ("tf_saved_model", "litert"), "jax": ("tf_saved_model",)}


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of named tensors that gives named tensors.

    Attributes:
        function: function of a dict.
        specs: shape, with None where any size will do, and dtype of each input.
    """

    function: typing.Callable
    specs: dict


def export_streaming(streaming, filepath, format, batch_size, length, max_length):
    """Writes the three signatures of a `StreamingModel`; see its `export`."""
    path = pathlib.Path(filepath)
    _check_format(format, path)
    for name, size in (("batch_size", batch_size), ("length", length)):
        if size is not None:
            check_positive_int(name, size)
    found = signatures(streaming, batch_size, length, max_length)
    with whole(path) as new:
        if format == "tf_saved_model":
            _write_saved_model(streaming.model, found, new)
        else:
            _write_litert(streaming.model, found, new)


def _check_format(format, path):
    backend = keras.backend.backend()
    if format not in FORMATS.get(backend, ()):
        there = [f"{x!r} on {name}" for name, all in FORMATS.items() for x in all]
        raise ValueError(
            f"`format` must be one that a streamed model can be written in, "
            f"{', '.join(there)}; a .keras file that another backend saved loads "
            f"there. Received: format={format!r} on {backend}"
        )
    is_file = format == "litert"
    if is_file and path.suffix != ".tflite":
        raise ValueError(
            f'`filepath` must end in ".tflite". Received: filepath={str(path)!r}'
        )
    if path.exists() and path.is_dir() == is_file:
        raise ValueError(
            f"`filepath` must not be a {'folder' if is_file else 'file'} that is "
            f"there already. Received: filepath={str(path)!r}"
        )


@contextlib.contextmanager
def whole(path):
    """A place beside `path` to write to; it becomes `path` if nothing is raised.

    Files of another name in a folder that is there already are left, as Keras does.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
        new = pathlib.Path(folder) / path.name
        yield new
        # What names the others last: a reader finds it with all of them there.
        files = [p for p in new.rglob("*") if p.is_file()] if new.is_dir() else [new]
        for file in sorted(files, key=lambda file: file.parent == new):
            target = path / file.relative_to(new)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)


def signatures(streaming, batch_size, length, max_length):
    """`{"score": ..., "prefill": ..., "decode": ...}` of a `StreamingModel`."""
    model = streaming.model
    if isinstance(model.input, dict):
        names = sorted(model.input)  # the order of `model.inputs`
    else:
        names = [symbol.name for symbol in model.inputs]
    symbols = {
        name: symbol
        for name, symbol in zip(names, model.inputs)
        if not name.endswith("mask")  # no padding: every token counts
    }
    initial = streaming.get_initial_state(1, max_length)
    state_specs = {
        "_".join(("state", *path)): (
            (batch_size, *leaf.shape[1:]),
            keras.backend.standardize_dtype(leaf.dtype),
        )
        for path, leaf in tree.flatten_with_path(initial)
    }

    def piece_specs(size):
        return {
            name: ((batch_size, size, *symbol.shape[2:]), symbol.dtype)
            for name, symbol in symbols.items()
        }

    def inputs_of(given):
        first = given[next(iter(symbols))]
        tensors = [
            given[name]
            if name in symbols
            else ops.ones(ops.shape(first)[:2], symbol.dtype)
            for name, symbol in zip(names, model.inputs)
        ]
        return tree.pack_sequence_as(model.input, tensors)

    def stream(given, count=None):
        state = tree.pack_sequence_as(initial, [given[name] for name in state_specs])
        outputs, state = streaming.stream(inputs_of(given), state, count)
        return outputs, dict(zip(state_specs, tree.flatten(state)))

    def score(given):
        return {"outputs": model(inputs_of(given), training=False)}

    def prefill(given):
        outputs, state = stream(given, given["length"])
        last = ops.maximum(given["length"] - 1, 0)
        return {"outputs": ops.take(outputs, last, axis=1), **state}

    def decode(given):
        outputs, state = stream(given)
        return {"outputs": ops.squeeze(outputs, axis=1), **state}

    count = {"length": ((), "int32")}
    return {
        "score": Signature(score, piece_specs(length)),
        "prefill": Signature(prefill, {**piece_specs(length), **count, **state_specs}),
        "decode": Signature(decode, {**piece_specs(1), **state_specs}),
    }


def _write_saved_model(model, found, path):
    archive = keras.export.ExportArchive()
    archive.track(model)
    for name, signature in found.items():
        specs = {
            name: keras.InputSpec(shape=shape, dtype=dtype, name=name)
            for name, (shape, dtype) in signature.specs.items()
        }
        archive.add_endpoint(name, signature.function, [specs])
    archive.write_out(str(path), verbose=False)


def _write_litert(model, found, path):
    """Of built-in operators only: a runtime on a phone has no others."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        _write_saved_model(model, found, folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=list(found)
        )
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        path.write_bytes(converter.convert())
