"""StreamingModel: a whole model, continued piece by piece."""

import inspect

import keras
from keras import ops
from keras import tree

from keras_flash.layers.scale_norm import ScaleNorm
from keras_flash.layers.scale_offset import ScaleOffset
from keras_flash.layers.streaming_layer import StreamingLayer
from keras_flash.layers.validation import check_bool
from keras_flash.layers.validation import check_ids
from keras_flash.layers.validation import check_length

TOKENWISE = (
    keras.layers.Activation,
    keras.layers.ActivityRegularization,
    keras.layers.AlphaDropout,
    keras.layers.BatchNormalization,
    keras.layers.Concatenate,
    keras.layers.Dense,
    keras.layers.Dropout,
    keras.layers.ELU,
    keras.layers.Embedding,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.Identity,
    keras.layers.LayerNormalization,
    keras.layers.LeakyReLU,
    keras.layers.RMSNormalization,
    keras.layers.ReLU,
    keras.layers.Rescaling,
    keras.layers.Softmax,
    keras.layers.SpatialDropout1D,
    keras.layers.UnitNormalization,
    keras.layers.Add,
    keras.layers.Average,
    keras.layers.Maximum,
    keras.layers.Minimum,
    keras.layers.Multiply,
    keras.layers.Subtract,
    ScaleNorm,
    ScaleOffset,
)
# `x + y`, `keras.ops.tanh(x)` and their like, which a functional model holds too.
ELEMENTWISE = (
    *("Absolute", "Add", "Cast", "Divide", "Exp", "Gelu", "Log", "Multiply"),
    *("Negative", "Relu", "Sigmoid", "Silu", "Softplus", "Sqrt", "Square"),
    *("Subtract", "Tanh", "TrueDivide"),
)


def check_functional(model, purpose):
    is_functional = isinstance(model, keras.Model) and hasattr(model, "_nodes_by_depth")
    is_sequential = isinstance(model, keras.Sequential) and model.built
    if not is_functional and not is_sequential:
        raise ValueError(
            "`model` must be a functional model or a built sequential one to be "
            f"{purpose}. Received: model={getattr(model, 'name', model)!r}, "
            f"{type(model).__name__}"
        )


class StreamingModel:
    """A functional or sequential model that continues sequences piece by piece.

    Layers with `get_initial_state` and `stream` are streamed; every other layer must
    treat each token alone, and is called as it is. A layer of your own that does the
    latter says so by an attribute `tokenwise = True`. The model is not copied: its
    weights are read at each step.

    Every token of a piece counts, up to `length`: masks, implicit or given to the
    model as an input, are not read.

    Args:
        model: functional or sequential `keras.Model`, built.
        jit_compile: bool, whether `stream` is compiled: by XLA, or by torch.compile.
            One program serves every position; a new one is made for each new shape
            of a piece. Values that a program cannot see, as token ids, are not
            checked then. After `quantize` or `enable_lora` make a new one. Defaults
            to `False`.

    Raises:
        ValueError: for a layer that cannot be streamed, by name.

    Example:

    >>> ids = keras.Input((None,), dtype="int32")
    >>> x = keras.layers.Embedding(256, 64)(ids)
    >>> x = MixedChunkAttention(causal=True)(x) + x
    >>> streaming = StreamingModel(keras.Model(ids, keras.layers.Dense(256)(x)))
    >>> state = streaming.get_initial_state(batch_size=1)
    >>> logits, state = streaming.stream(np.array([[7, 8, 9]]), state)
    """

    def __init__(self, model, jit_compile=False):
        check_bool("jit_compile", jit_compile)
        check_functional(model, "streamed")
        self.model = model
        self.jit_compile = jit_compile
        self._parts = {}  # what has a state, by key, in the order of the calls
        for layer, args, kwargs in _nodes(model):
            if isinstance(layer, keras.Model):
                part = StreamingModel(layer)
            elif _streams(layer):
                part = layer
                if isinstance(layer, StreamingLayer):
                    layer.check_streams()
                _check_one_sequence(layer, args, kwargs)
            elif _is_tokenwise(layer, tree.flatten((args, kwargs))):
                continue
            else:
                raise ValueError(
                    "Each layer must have `get_initial_state` and `stream` or treat "
                    "each token alone for a model to be streamed. "
                    f"Received: layer={layer.name!r}, {type(layer).__name__}"
                )
            key, count = layer.name, 1
            while key in self._parts:  # called twice, it has two states
                count += 1
                key = f"{layer.name}_call_{count}"
            self._parts[key] = part
        self._step = _compiled(model, self._run) if jit_compile else self._run

    def get_initial_state(self, batch_size, max_length=None):
        """The state before the first token.

        Args:
            batch_size: int, or a scalar int tensor.
            max_length: int, room for so many tokens in the caches of layers that have
                one (`GatedAttentionUnit`). Other layers need none.

        Returns:
            Nested dict of tensors, each with the batch as its first axis, by the
            names of the layers.

        Raises:
            ValueError: where `max_length` is missing, and for a `batch_size` that is
                no positive integer.
        """
        state = {}
        for key, part in self._parts.items():
            arguments = inspect.signature(part.get_initial_state).parameters
            if "max_length" not in arguments:
                state[key] = part.get_initial_state(batch_size)
            elif max_length is None and not isinstance(part, StreamingModel):
                raise ValueError(
                    "`max_length` must be given where a layer has a key/value cache, "
                    f"here {key!r}. Received: max_length=None"
                )
            else:
                state[key] = part.get_initial_state(batch_size, max_length)
        return state

    def stream(self, inputs, state, length=None):
        """Continues a sequence by a piece of any length.

        However a sequence is cut into pieces, the outputs equal those of one call in
        inference.

        Args:
            inputs: the inputs of the model, tensors `(b, t, ...)`, in a dict where
                the model takes one.
            state: what `get_initial_state` or the previous `stream` gave.
            length: int or scalar int tensor from 0 to t, as for the layers.

        Returns:
            The outputs of the model for the piece, and the new state.

        Raises:
            ValueError: for a state that is not of this model, batch size and dtype
                policy, for token ids outside the vocabulary, and for a `length` that
                is out of range or no integer.
        """
        wanted, structure = self.model.inputs, self.model.input
        if isinstance(structure, dict):
            names = sorted(structure)  # the order of `wanted`
            if not isinstance(inputs, dict) or sorted(inputs) != names:
                given = sorted(inputs) if isinstance(inputs, dict) else type(inputs)
                raise ValueError(
                    f"`inputs` must be a dict of {', '.join(names)}. "
                    f"Received: inputs={given}"
                )
            tensors = [inputs[name] for name in names]
        else:
            tensors = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        if len(tensors) != len(wanted) or any(isinstance(x, dict) for x in tensors):
            raise ValueError(
                f"`inputs` must be the {len(wanted)} inputs of the model. "
                f"Received: {len(tensors)} of {type(inputs).__name__}"
            )
        tensors = [
            ops.convert_to_tensor(tensor, dtype=symbol.dtype)
            for tensor, symbol in zip(tensors, wanted)
        ]
        if any(x.shape[:2] != tensors[0].shape[:2] for x in tensors):
            raise ValueError(
                "`inputs` must have one batch size and one length. Received: shapes "
                f"{', '.join(str(tuple(x.shape)) for x in tensors)}"
            )
        if length is not None:
            length = check_length(length, tensors[0])
            if self.jit_compile:  # a number would be a constant of the program
                length = ops.convert_to_tensor(length, dtype="int32")
        return self._step(tensors, state, length)

    def _run(self, tensors, state, length):
        keys = iter(self._parts)
        if not isinstance(state, dict) or set(state) != set(self._parts):
            given = sorted(state) if isinstance(state, dict) else state
            raise ValueError(
                "`state` must be what `get_initial_state` or `stream` of this model "
                f"gave, a dict of {', '.join(self._parts)}. Received: state={given}"
            )
        new_state = {}

        def runner(layer):
            if not isinstance(layer, keras.Model) and not _streams(layer):
                return lambda *args, **kwargs: _call(layer, args, kwargs)
            key = next(keys)
            part = self._parts[key]

            def step(*args, **kwargs):
                given = [*args, *(kwargs[name] for name in kwargs if _is_read(name))]
                inputs = given[0]
                outputs, new_state[key] = part.stream(inputs, state[key], length)
                return outputs

            return step

        if isinstance(self.model, keras.Sequential):
            (outputs,) = tensors
            for layer in self.model.layers:
                outputs = runner(layer)(outputs)
        else:
            outputs = self.model._run_through_graph(tensors, operation_fn=runner)
        return outputs, new_state


def _compiled(model, run):
    """`run` as one program, that takes the weights of the model as they are."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(run, jit_compile=True)
    if backend == "jax":
        import jax

        @jax.jit
        def stateless(weights, tensors, state, length):
            with keras.StatelessScope(zip(model.variables, weights)):
                return run(tensors, state, length)

        def step(tensors, state, length):
            weights = [variable.value for variable in model.variables]
            return stateless(weights, tensors, state, length)

        return step
    import torch

    return torch.no_grad()(torch.compile(run, dynamic=False, fullgraph=True))


def _nodes(model):
    """Each layer or operation of a model in the order of its calls, and arguments."""
    if isinstance(model, keras.Sequential):
        return [(layer, (layer.input,), {}) for layer in model.layers]
    by_depth = model._nodes_by_depth
    return [
        (node.operation, node.arguments.args, node.arguments.kwargs)
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation is not None and not node.is_input
    ]


def _streams(layer):
    return hasattr(layer, "stream") and hasattr(layer, "get_initial_state")


def _call(layer, args, kwargs):
    if isinstance(layer, keras.layers.Embedding) and not kwargs.get("reverse"):
        ids = ops.cast(args[0], "int32")  # as the layer does
        check_ids("token_ids", ids, layer.input_dim)
    return layer(*args, **kwargs)


def _is_read(name):
    return not name.endswith("mask")


def _check_one_sequence(layer, args, kwargs):
    """A layer that streams continues one sequence; masks are not read."""
    given = inspect.signature(layer.call).bind(*args, **kwargs).arguments
    given = {name: x for name, x in given.items() if _is_read(name)}
    tensors = [x for x in tree.flatten(given) if isinstance(x, keras.KerasTensor)]
    if any(x is not tensors[0] for x in tensors):
        raise ValueError(
            "A layer must have one sequence as its input to be streamed: no segments, "
            f"no second sequence. Received: layer={layer.name!r}, {', '.join(given)}"
        )


def _is_tokenwise(layer, arguments):
    if hasattr(layer, "tokenwise"):
        return layer.tokenwise
    if not isinstance(layer, keras.layers.Layer):
        # A constant with a value for each position would not move on with the pieces.
        return type(layer).__name__ in ELEMENTWISE and not any(
            hasattr(x, "shape")
            and not isinstance(x, keras.KerasTensor)
            and len(x.shape) > 1
            and x.shape[-2] != 1
            for x in arguments
        )
    ranks = {len(x.shape) for x in arguments if isinstance(x, keras.KerasTensor)}
    axes = [-1] if isinstance(layer, keras.layers.Dense) else getattr(layer, "axis", [])
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    # Axis 1 is time.
    return isinstance(layer, TOKENWISE) and all(
        axis % rank > 1 for axis in axes for rank in ranks or {3}
    )
