"""Streaming a whole model: attention from its states, every other layer as it is.

A functional or sequential model can be streamed where each of its layers either
streams itself, with `get_initial_state` and `stream`, or treats each token alone.
"""

import inspect

import keras
from keras import ops
from keras import tree

from keras_flash.layers.scale_norm import ScaleNorm
from keras_flash.layers.scale_offset import ScaleOffset
from keras_flash.layers.validation import check_length
from keras_flash.layers.validation import check_token_ids

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
LAST_AXIS = (-1, 2)  # of (b, t, d)


def get_initial_state(model, batch_size, max_length=None):
    """The state of a model before the first token.

    Args:
        model: functional or sequential `keras.Model`, built.
        batch_size: int, or a scalar int tensor.
        max_length: int, room for so many tokens in the caches of layers that have
            one (`GatedAttentionUnit`). Other layers need none.

    Returns:
        Nested dict of tensors, each with the batch as its first axis, by the names
        of the layers.

    Raises:
        ValueError: for a layer that cannot be streamed, by name, and where
            `max_length` is missing.

    Example:

    >>> ids = keras.Input((None,), dtype="int32")
    >>> x = keras.layers.Embedding(256, 64)(ids)
    >>> x = MixedChunkAttention(causal=True)(x) + x
    >>> model = keras.Model(ids, keras.layers.Dense(256)(x))
    >>> state = get_initial_state(model, batch_size=1)
    >>> logits, state = stream(model, [[7, 8, 9]], state)
    """
    _check_streams(model)

    def initial(layer):
        if isinstance(layer, keras.Model):
            return get_initial_state(layer, batch_size, max_length)
        if "max_length" not in inspect.signature(layer.get_initial_state).parameters:
            return layer.get_initial_state(batch_size)
        if max_length is None:
            raise ValueError(
                "`max_length` must be given where a layer has a key/value cache, here "
                f"{layer.name!r}. Received: max_length=None"
            )
        return layer.get_initial_state(batch_size, max_length)

    return {key: initial(layer) for key, layer in _stateful_layers(model).items()}


def stream(model, inputs, state, length=None):
    """Continues a sequence through a model by a piece of any length.

    However a sequence is cut into pieces, the outputs equal those of one call in
    inference. Every token of a piece counts, up to `length`: masks, implicit or given
    to the model as an input, are not read.

    Args:
        model: functional or sequential `keras.Model`, built.
        inputs: the inputs of the model, tensors `(b, t, ...)`.
        state: what `get_initial_state` or the previous `stream` gave.
        length: int or scalar int tensor from 0 to t, as for the layers.

    Returns:
        The outputs of the model for the piece, and the new state.

    Raises:
        ValueError: for a layer that cannot be streamed, by name, for a state that is
            not of this model, batch size and dtype policy, for token ids outside the
            vocabulary, and for a `length` that is out of range or no integer.
    """
    _check_streams(model)
    keys = list(_stateful_layers(model))
    if not isinstance(state, dict) or set(state) != set(keys):
        given = sorted(state) if isinstance(state, dict) else state
        raise ValueError(
            "`state` must be what `get_initial_state` or `stream` of this model gave, "
            f"a dict of {', '.join(keys)}. Received: state={given}"
        )
    tensors = tree.flatten(inputs)
    if len(tensors) != len(model.inputs):
        raise ValueError(
            f"`inputs` must be the {len(model.inputs)} inputs of the model. "
            f"Received: {len(tensors)} tensors"
        )
    tensors = [
        ops.convert_to_tensor(tensor, dtype=wanted.dtype)
        for tensor, wanted in zip(tensors, model.inputs)
    ]
    length = check_length(length, tensors[0])
    new_state = {}

    def run(layer):
        if not _is_stateful(layer):
            return lambda *args, **kwargs: _call(layer, args, kwargs)
        key = keys[len(new_state)]

        def step(*args, **kwargs):
            if isinstance(layer, keras.Model):
                outputs, new_state[key] = stream(layer, args[0], state[key], length)
            else:
                inputs = _only_input(layer, args, kwargs)
                outputs, new_state[key] = layer.stream(inputs, state[key], length)
            return outputs

        return step

    if isinstance(model, keras.Sequential):
        (outputs,) = tensors
        for layer in model.layers:
            outputs = run(layer)(outputs)
    else:
        outputs = model._run_through_graph(tensors, operation_fn=run)
    return outputs, new_state


def _nodes(model):
    """Each layer or operation of a model in the order of its calls, and arguments."""
    if isinstance(model, keras.Sequential):
        return [(layer, ()) for layer in model.layers]
    by_depth = model._nodes_by_depth
    return [
        (node.operation, tree.flatten((node.arguments.args, node.arguments.kwargs)))
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation is not None and not node.is_input
    ]


def _is_stateful(layer):
    return isinstance(layer, keras.Model) or (
        hasattr(layer, "stream") and hasattr(layer, "get_initial_state")
    )


def _stateful_layers(model):
    """The layers with a state, by keys. One that is called twice has two states."""
    layers = {}
    for layer, _ in _nodes(model):
        if _is_stateful(layer):
            key, count = layer.name, 1
            while key in layers:
                count += 1
                key = f"{layer.name}_call_{count}"
            layers[key] = layer
    return layers


def _call(layer, args, kwargs):
    if isinstance(layer, keras.layers.Embedding) and not kwargs.get("reverse"):
        check_token_ids(args[0], layer.input_dim)
    return layer(*args, **kwargs)


def _only_input(layer, args, kwargs):
    """The one sequence that a layer streams; masks are not read."""
    given = [x for x in args if x is not None]
    given += [
        x
        for name, x in kwargs.items()
        if ops.is_tensor(x) and not name.endswith("mask")
    ]
    if any(x is not given[0] for x in given):
        raise ValueError(
            "A layer must have one sequence as its input to be streamed: no segments, "
            f"no second sequence. Received: layer={layer.name!r}"
        )
    return given[0]


def _check_streams(model):
    is_functional = isinstance(model, keras.Model) and hasattr(model, "_nodes_by_depth")
    if not is_functional and not (isinstance(model, keras.Sequential) and model.built):
        raise ValueError(
            "`model` must be a functional model or a built sequential one to be "
            f"streamed. Received: model={getattr(model, 'name', model)!r}, "
            f"{type(model).__name__}"
        )
    for layer, arguments in _nodes(model):
        if isinstance(layer, keras.Model):
            _check_streams(layer)
        elif not _is_stateful(layer) and not _is_tokenwise(layer, arguments):
            raise ValueError(
                "Each layer must have `get_initial_state` and `stream` or treat each "
                "token alone for a model to be streamed; a layer of your own that does "
                "the latter says so by an attribute `tokenwise = True`. "
                f"Received: layer={layer.name!r}, {type(layer).__name__}"
            )


def _is_tokenwise(layer, arguments):
    if hasattr(layer, "tokenwise"):
        return layer.tokenwise
    if not isinstance(layer, keras.layers.Layer):
        # A constant with a value for each position would not move on with the pieces.
        return type(layer).__name__ in ELEMENTWISE and not any(
            ops.is_tensor(x)
            and not isinstance(x, keras.KerasTensor)
            and len(x.shape) > 1
            and x.shape[-2] != 1
            for x in arguments
        )
    axes = getattr(layer, "axis", -1)
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    return isinstance(layer, TOKENWISE) and all(axis in LAST_AXIS for axis in axes)
