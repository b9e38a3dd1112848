"""FlowAttention: multi-head attention by conserved flows, at linear cost."""

import keras
from keras import ops

from keras_flash.layers.streaming_layer import StreamingLayer
from keras_flash.layers.sublayers import ProjectionLayer
from keras_flash.layers.sublayers import project
from keras_flash.layers.validation import check_bool
from keras_flash.layers.validation import check_choice
from keras_flash.layers.validation import check_positions
from keras_flash.layers.validation import check_positive
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_rate
from keras_flash.layers.validation import check_sequence_shape
from keras_flash.layers.validation import check_unset
from keras_flash.layers.validation import merge_masks
from keras_flash.layers.validation import pass_on_mask
from keras_flash.ops.flow_attention import FEATURE_MAPS
from keras_flash.ops.flow_attention import flow_attention
from keras_flash.ops.flow_attention_stream import flow_attention_stream


@keras.saving.register_keras_serializable(package="keras_flash")
class FlowAttention(StreamingLayer, ProjectionLayer):
    """Flow-Attention, the attention of Flowformer.

    Values are sources and results are sinks of a flow. Each sink's incoming flow
    and each source's outgoing flow is conserved, which makes the sources compete
    and allocates to the sinks:

        I_t = (q_t + eps) . (sum_s k_s + eps)
        O_s = (k_s + eps) . (sum_t q_t + eps)
        I'_t = (q_t + eps) . (sum_s k_s / O_s + eps)
        O'_s = (k_s + eps) . (sum_t q_t / I_t + eps)
        competition_s = S softmax_s(O'_s)
        allocation_t = sigmoid(I'_t L / S)
        y_t = allocation_t (q_t / I_t) . sum_s k_s (competition_s v_s)^T

    for L queries q = phi(query_dense query) and S keys k = phi(key_dense key), per
    head; t query position, s key position. Causal: each sum runs up to the same
    position, with the number of positions so far in place of L and S. Wu et al.,
    2022, section 3.2 and appendix A. Time and memory are linear in the length.

    Streaming: a causal layer continues self-attention by `stream`, at a cost a token
    and with a state, sums of (num_heads, key_dim, value_dim) at most, that do not
    depend on the position.

    Masking: masked keys leave every sum, the softmax and S; masked queries leave the
    outgoing sums and L. Outputs of masked queries are finite and otherwise
    unspecified. The query's mask is passed on.

    Args:
        num_heads: int.
        key_dim: int, features of queries and keys per head.
        value_dim: int, features of values per head. Defaults to `key_dim`.
        output_dim: int, features of the output. Defaults to those of the query.
        causal: bool, whether a query sees no later key. Defaults to `False`.
        feature_map: phi: `"sigmoid"`, `"elu"` (elu + 1) or `"relu"`. Defaults to
            `"sigmoid"`.
        competition: `"softmax"`, `"sigmoid"` (of O') or `None` (all 1). Defaults to
            `"softmax"`.
        allocation: `"sigmoid"`, `"softmax"` (L softmax over queries of I', not
            causal) or `None` (all 1). Defaults to `"sigmoid"`.
        competition_clip: float, O' is clipped to plus or minus this before
            competition, as the authors' code does at 1; `None` for no clip. Defaults
            to `None`.
        epsilon: float, added to both factors of each sum. Defaults to `1e-6`.
        use_bias: bool, whether the dense sublayers have a bias. Defaults to `True`.
        dropout: float in [0, 1), the rate at what enters `output_dense`. Defaults to
            `0.0`.
        kernel_initializer: of the dense sublayers. Defaults to `"glorot_uniform"`.
        bias_initializer: of the dense sublayers. Defaults to `"zeros"`.
        remat: bool, whether training makes what is inside the layer a second time, on
            the way back, in place of keeping it: less memory, more time
            (`keras.remat`). Defaults to `False`.

    Call arguments:
        query: tensor `(b, t, d)`.
        value: tensor `(b, s, f)`.
        key: tensor `(b, s, g)`. Defaults to `value`.
        query_mask: `(b, t)`, true = real token.
        value_mask: `(b, s)`. A key counts where `value_mask` and `key_mask` hold.
        key_mask: `(b, s)`. When causal all three masks are ANDed.
        return_flow: bool, whether to return the flow too.
        training: bool, whether dropout is active.

    Returns:
        Tensor `(b, t, output_dim)`. With `return_flow` also a dict: `"incoming"` I
        and `"allocation"`, `(b, num_heads, t)`, `"outgoing"` O and `"competition"`,
        `(b, num_heads, s)`, in at least float32.

    Raises:
        ValueError: for an argument outside what is listed here, for
            `allocation="softmax"` when causal, for a `competition_clip` without
            competition, for causal attention between sequences of different
            lengths, and for inputs or masks of another rank.

    Example:

    >>> layer = FlowAttention(num_heads=4, key_dim=16)
    >>> query = keras.random.normal((2, 7, 64))
    >>> source = keras.random.normal((2, 30, 64))
    >>> y = layer(query, source)
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        output_dim=None,
        causal=False,
        feature_map="sigmoid",
        competition="softmax",
        allocation="sigmoid",
        competition_clip=None,
        epsilon=1e-6,
        use_bias=True,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        remat=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive_int("num_heads", num_heads)
        check_positive_int("key_dim", key_dim)
        if value_dim is not None:
            check_positive_int("value_dim", value_dim)
        if output_dim is not None:
            check_positive_int("output_dim", output_dim)
        check_bool("causal", causal)
        check_choice("feature_map", feature_map, tuple(FEATURE_MAPS))
        check_choice("competition", competition, ("softmax", "sigmoid", None))
        check_choice("allocation", allocation, ("sigmoid", "softmax", None))
        if causal and allocation == "softmax":
            raise ValueError(
                '`allocation` must be "sigmoid" or None where causal: a softmax over '
                "queries would see later ones. Received: allocation='softmax'"
            )
        if competition_clip is not None:
            check_positive("competition_clip", competition_clip)
        if competition is None:
            reason = "without competition"
            check_unset("competition_clip", competition_clip, None, reason)
        check_positive("epsilon", epsilon)
        check_bool("use_bias", use_bias)
        check_rate("dropout", dropout)
        check_bool("remat", remat)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.output_dim = output_dim
        self.causal = causal
        self.feature_map = feature_map
        self.competition = competition
        self.allocation = allocation
        self.competition_clip = competition_clip
        self.epsilon = epsilon
        self.use_bias = use_bias
        self.dropout = dropout
        self.remat = remat
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self._check_shapes(query_shape, value_shape, key_shape)
        key_units = self.num_heads * self.key_dim
        value_units = self.num_heads * (self.value_dim or self.key_dim)
        output_units = self.output_dim or query_shape[-1]
        self.query_dense = self.build_dense(
            "query_dense", query_shape[-1], key_units, 0
        )
        self.key_dense = self.build_dense("key_dense", key_shape[-1], key_units, 1)
        self.value_dense = self.build_dense(
            "value_dense", value_shape[-1], value_units, 2
        )
        self.output_dense = self.build_dense(
            "output_dense", value_units, output_units, 3
        )
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy, name="dropout"
        )

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        return_flow=False,
        training=None,
    ):
        self._check_call(query, value, key, query_mask, value_mask, key_mask)
        masks = merge_masks(query_mask), merge_masks(value_mask, key_mask)

        def attend(query, key, value):
            outputs, flow = flow_attention(
                *self._project(query, key, value),
                *masks,
                causal=self.causal,
                **self._flow_options,
            )
            return self._merge_heads(outputs), flow

        # The dropout stays outside: made again, it would be another one.
        attend = keras.remat(attend) if self.remat else attend
        outputs, flow = attend(query, value if key is None else key, value)
        outputs = self.dropout_layer(outputs, training=training)
        outputs = project(self.output_dense, outputs)
        return (outputs, flow) if return_flow else outputs

    def _stream(self, inputs, state, length):
        outputs, state = flow_attention_stream(
            *self._project(inputs, inputs, inputs), state, length, **self._flow_options
        )
        return project(self.output_dense, self._merge_heads(outputs)), state

    def _state_spec(self):
        key_dim, value_dim = self.key_dim, self.value_dim or self.key_dim
        sums = "keys", "queries", "keys_over", "queries_over"
        scalars = "maximum", "total"
        heads, dtype = self.num_heads, self._sum_dtype
        return {
            "position": ((), "int32"),
            **{name: ((heads, key_dim), dtype) for name in sums},
            **{name: ((heads,), dtype) for name in scalars},
            "summary": ((heads, key_dim, value_dim), dtype),
        }

    def _project(self, query, key, value):
        """Queries, keys and values, `(b, h, t, d)`."""
        return (
            self._split_heads(project(self.query_dense, query)),
            self._split_heads(project(self.key_dense, key)),
            self._split_heads(project(self.value_dense, value)),
        )

    @property
    def _flow_options(self):
        return dict(
            feature_map=self.feature_map,
            competition=self.competition,
            allocation=self.allocation,
            competition_clip=self.competition_clip,
            epsilon=self.epsilon,
        )

    def _split_heads(self, x):
        """`(b, t, h * d)` to `(b, h, t, d)`."""
        features = x.shape[-1] // self.num_heads
        x = ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads, features))
        return ops.transpose(x, (0, 2, 1, 3))

    def _merge_heads(self, x):
        """The way back."""
        x = ops.transpose(x, (0, 2, 1, 3))  # (b, t, h, e)
        return ops.reshape(x, (-1, ops.shape(x)[1], x.shape[2] * x.shape[3]))

    def _check_shapes(self, query_shape, value_shape, key_shape):
        check_sequence_shape("query", query_shape)
        check_sequence_shape("value", value_shape)
        check_sequence_shape("key", key_shape)
        for name, shape in (("value", value_shape), ("key", key_shape)):
            if None not in (query_shape[0], shape[0]) and query_shape[0] != shape[0]:
                raise ValueError(
                    f"`query` and `{name}` must have one batch size. Received: "
                    f"query.shape={tuple(query_shape)}, {name}.shape={tuple(shape)}"
                )
        self._check_lengths("key", key_shape[1], "value", value_shape[1])
        if self.causal:
            self._check_lengths("query", query_shape[1], "value", value_shape[1])

    def _check_lengths(self, first_name, first, second_name, second):
        if first is not None and second is not None and first != second:
            causal = " where causal" if first_name == "query" else ""
            raise ValueError(
                f"`{first_name}` and `{second_name}` must have one length{causal}. "
                f"Received: {first_name} length={first}, {second_name} length={second}"
            )

    def _check_call(self, query, value, key, query_mask, value_mask, key_mask):
        key = value if key is None else key
        self._check_shapes(query.shape, value.shape, key.shape)
        check_positions("query_mask", query_mask, query)
        check_positions("value_mask", value_mask, value)
        check_positions("key_mask", key_mask, key)

    def compute_output_spec(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        return_flow=False,
        training=None,
    ):
        self._check_call(query, value, key, query_mask, value_mask, key_mask)
        shape = self.compute_output_shape(query.shape, value.shape)
        outputs = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_flow:
            return outputs
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        lengths = {
            "incoming": query.shape[1],
            "outgoing": value.shape[1],
            "competition": value.shape[1],
            "allocation": query.shape[1],
        }
        return outputs, {
            name: keras.KerasTensor((query.shape[0], self.num_heads, length), dtype)
            for name, length in lengths.items()
        }

    def compute_mask(self, query, previous_mask=None):
        return pass_on_mask(query, previous_mask)

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self):
        config = super().get_config()
        config.update(
            num_heads=self.num_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            output_dim=self.output_dim,
            causal=self.causal,
            feature_map=self.feature_map,
            competition=self.competition,
            allocation=self.allocation,
            competition_clip=self.competition_clip,
            epsilon=self.epsilon,
            use_bias=self.use_bias,
            dropout=self.dropout,
            kernel_initializer=keras.initializers.serialize(self.kernel_initializer),
            bias_initializer=keras.initializers.serialize(self.bias_initializer),
            remat=self.remat,
        )
        return config
