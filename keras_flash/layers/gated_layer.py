"""What the two gated layers share: projections, gate, positions, configuration."""

import keras
from keras import ops

from keras_flash.layers.relative_position_bias import KINDS
from keras_flash.layers.relative_position_bias import RelativePositionBias
from keras_flash.layers.scale_offset import ScaleOffset
from keras_flash.layers.streaming_layer import StreamingLayer
from keras_flash.layers.sublayers import ProjectionLayer
from keras_flash.layers.sublayers import project
from keras_flash.layers.validation import check_bool
from keras_flash.layers.validation import check_choice
from keras_flash.layers.validation import check_positions
from keras_flash.layers.validation import check_positive
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_rate
from keras_flash.layers.validation import check_segment_ids
from keras_flash.layers.validation import check_sequence_shape
from keras_flash.layers.validation import merge_masks
from keras_flash.layers.validation import pass_on_mask
from keras_flash.ops import activations
from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.relative_position_bias import distances_between
from keras_flash.ops.rotary import rotate
from keras_flash.ops.rotary import rotation


class GatedLayer(StreamingLayer, ProjectionLayer):
    """`y = output_dense(u * attention(z, v))`.

    u = act(gate_dense x), v = act(value_dense x), z = act(base_dense x), and
    `scale_offset` turns z into queries and keys. A subclass gives the attention as
    `_attend(views, value, mask, segment_ids)`, which returns `(b, t, e)`, and as
    `_attend_stream(views, value, state, length)`, which returns the new state too.
    """

    def __init__(
        self,
        key_dim,
        expansion_factor,
        causal,
        attention_activation,
        relative_position_bias,
        use_rotary,
        activation,
        use_bias,
        dropout,
        kernel_initializer,
        bias_initializer,
        remat,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive_int("key_dim", key_dim)
        check_positive("expansion_factor", expansion_factor)
        check_bool("causal", causal)
        check_choice("relative_position_bias", relative_position_bias, (*KINDS, None))
        check_bool("use_rotary", use_rotary)
        check_bool("use_bias", use_bias)
        check_rate("dropout", dropout)
        check_bool("remat", remat)
        if use_rotary and key_dim % 2:
            raise ValueError(
                "`key_dim` must be even where `use_rotary` is True. "
                f"Received: key_dim={key_dim}"
            )
        self.key_dim = key_dim
        self.expansion_factor = expansion_factor
        self.causal = causal
        self.attention_activation = _get_kernel(attention_activation)
        self.relative_position_bias = relative_position_bias
        self.use_rotary = use_rotary
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.dropout = dropout
        self.remat = remat
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True

    def _build(self, inputs_shape, num_outputs, max_length):
        """Makes the sublayers; `max_length=None` leaves the position bias out."""
        check_sequence_shape("inputs", inputs_shape)
        features = inputs_shape[-1]
        expanded = int(self.expansion_factor * features)
        if expanded < 1:
            raise ValueError(
                f"`expansion_factor` must leave at least one of {features} features. "
                f"Received: expansion_factor={self.expansion_factor}"
            )
        self.gate_dense = self.build_dense("gate_dense", features, expanded, 0)
        self.value_dense = self.build_dense("value_dense", features, expanded, 1)
        self.base_dense = self.build_dense("base_dense", features, self.key_dim, 2)
        self.output_dense = self.build_dense("output_dense", expanded, features, 3)
        self.scale_offset = ScaleOffset(
            num_outputs, dtype=self.dtype_policy, name="scale_offset"
        )
        self.scale_offset.build((None, None, self.key_dim))
        self.position_bias = None
        if max_length is not None and self.relative_position_bias is not None:
            kind = self.relative_position_bias
            table = {"max_length": max_length} if kind in ("auto", "toeplitz") else {}
            self.position_bias = RelativePositionBias(
                kind,
                **table,
                bidirectional=not self.causal,
                dtype=self.dtype_policy,
                name="position_bias",
            )
            self.position_bias.build()
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy, name="dropout"
        )

    def call(
        self, inputs, mask=None, segment_ids=None, inputs_mask=None, training=None
    ):
        self._check_call(inputs, mask, segment_ids, inputs_mask)
        positions = ops.arange(0, ops.shape(inputs)[1], dtype="int32")
        mask = merge_masks(mask, inputs_mask)

        def attend(inputs):
            gate, value, views = self._project(inputs, positions)
            return self._gate(gate, self._attend(views, value, mask, segment_ids))

        # The dropout stays outside: made again, it would be another one.
        gated = (keras.remat(attend) if self.remat else attend)(inputs)
        gated = self.dropout_layer(gated, training=training)
        return project(self.output_dense, gated)

    def _stream(self, inputs, state, length):
        places = ops.arange(0, ops.shape(inputs)[1], dtype="int32")
        positions = ops.expand_dims(state["position"], 1) + places  # (b, t)
        gate, value, views = self._project(inputs, positions)
        attended, state = self._attend_stream(views, value, state, length)
        return project(self.output_dense, self._gate(gate, attended)), state

    def _project(self, inputs, positions):
        """The gate u, the values v, and the queries and keys."""
        denses = self.gate_dense, self.value_dense, self.base_dense
        gate, value, base = [self.activation(project(x, inputs)) for x in denses]
        views = self.scale_offset(base)
        if self.use_rotary:
            cos, sin = rotation(positions, self.key_dim)
            views = [rotate(view, cos, sin) for view in views]
        return gate, value, views

    def _gate(self, gate, attended):
        return ops.cast(at_least_float32(gate) * attended, self.compute_dtype)

    @property
    def _bias(self):
        """The position bias as a function of distances, or `None`."""
        return None if self.position_bias is None else self.position_bias.by_distance

    def _bias_by_distance(self, length):
        """The position bias for distances from -(length - 1) to length - 1."""
        if self.position_bias is None:
            return None
        return self.position_bias.by_distance(distances_between(length, length))

    def _check_call(self, inputs, mask, segment_ids, inputs_mask):
        check_sequence_shape("inputs", inputs.shape)
        check_positions("mask", mask, inputs)
        check_positions("inputs_mask", inputs_mask, inputs)
        check_segment_ids(segment_ids, inputs)

    def compute_output_spec(
        self, inputs, mask=None, segment_ids=None, inputs_mask=None, training=None
    ):
        self._check_call(inputs, mask, segment_ids, inputs_mask)
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return pass_on_mask(inputs, previous_mask)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        config = super().get_config()
        config.update(
            key_dim=self.key_dim,
            expansion_factor=self.expansion_factor,
            causal=self.causal,
            attention_activation=activations.serialize(self.attention_activation),
            relative_position_bias=self.relative_position_bias,
            use_rotary=self.use_rotary,
            activation=keras.activations.serialize(self.activation),
            use_bias=self.use_bias,
            dropout=self.dropout,
            kernel_initializer=keras.initializers.serialize(self.kernel_initializer),
            bias_initializer=keras.initializers.serialize(self.bias_initializer),
            remat=self.remat,
        )
        return config


# What Keras offers that is not a function of one score alone.
ROW_ACTIVATIONS = ("glu", "log_softmax", "sparsemax", "threshold")


def _get_kernel(identifier):
    """`"softmax"`, or the function of one score that the identifier stands for."""
    try:
        kernel = activations.get(identifier)
    except (ValueError, TypeError):
        kernel = None
    rows = [
        getattr(module, name)
        for module in (keras.activations, ops)
        for name in ROW_ACTIVATIONS
    ]
    if kernel is None or identifier is None or kernel in rows:
        raise ValueError(
            '`attention_activation` must be "relu_squared", "laplace", "softmax", a '
            "Keras activation or a callable of one score. "
            f"Received: attention_activation={identifier!r}"
        )
    is_softmax = kernel in (keras.activations.softmax, ops.softmax)
    return "softmax" if is_softmax else kernel
