"""How a model is called from outside: functions of named tensors, one for each way."""

import dataclasses
import typing

import keras
from keras import ops
from keras import tree

from keras_flash.models.streaming_model import StreamingModel


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of named tensors that gives named tensors.

    Attributes:
        function: function of a dict that gives a dict.
        specs: shape, with None where any size will do, and dtype of each input.
    """

    function: typing.Callable
    specs: dict

    def next_name(self, name):
        """Of an output, where a format has one name for one value: a state changes."""
        return f"next_{name}" if name in self.specs else name


def signatures_of(model, batch_size, length, max_length):
    """`{name: Signature}` of a functional or sequential model, or a `StreamingModel`.

    The first is always `score`, a whole sequence.
    """
    if isinstance(model, StreamingModel):
        return _of_streaming(model, batch_size, length, max_length)
    symbols = input_symbols(model)
    specs = {name: _spec(x, batch_size, length) for name, x in symbols.items()}

    def score(given):
        inputs = tree.pack_sequence_as(model.input, [given[name] for name in symbols])
        return _named(model(inputs, training=False))

    return {"score": Signature(score, specs)}


def input_symbols(model):
    """`{name: KerasTensor}` of the inputs of a functional model, in its own order."""
    if isinstance(model.input, dict):
        return dict(zip(sorted(model.input), model.inputs))
    return {symbol.name: symbol for symbol in model.inputs}


def _spec(symbol, batch_size, length):
    """A size that the model has fixed stays."""
    shape = [batch_size, *symbol.shape[1:]]
    if len(shape) > 1 and shape[1] is None:
        shape[1] = length
    return tuple(shape), symbol.dtype


def _named(outputs):
    """`{"outputs": ...}`; a model of several outputs names or numbers them."""
    if isinstance(outputs, dict):
        return outputs
    if isinstance(outputs, (list, tuple)):
        return {f"outputs_{i}": x for i, x in enumerate(outputs)}
    return {"outputs": outputs}


def _of_streaming(streaming, batch_size, length, max_length):
    streaming = StreamingModel(streaming.model)  # no program inside a program
    model = streaming.model
    symbols = input_symbols(model)
    # No padding: every token counts.
    given_names = [name for name in symbols if not name.endswith("mask")]
    initial = streaming.get_initial_state(1, max_length)
    state_specs = {
        "_".join(("state", *path)): (
            (batch_size, *leaf.shape[1:]),
            keras.backend.standardize_dtype(leaf.dtype),
        )
        for path, leaf in tree.flatten_with_path(initial)
    }

    def piece_specs(size):
        return {name: _spec(symbols[name], batch_size, size) for name in given_names}

    def inputs_of(given):
        first = given[given_names[0]]
        tensors = [
            given[name] if name in given else ops.ones(ops.shape(first)[:2], x.dtype)
            for name, x in symbols.items()
        ]
        return tree.pack_sequence_as(model.input, tensors)

    def stream(given, count=None):
        state = tree.pack_sequence_as(initial, [given[name] for name in state_specs])
        outputs, state = streaming.stream(inputs_of(given), state, count)
        return outputs, dict(zip(state_specs, tree.flatten(state)))

    def score(given):
        return _named(model(inputs_of(given), training=False))

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
