"""GatedAttentionUnit: one gated attention head in place of a Transformer block."""

import keras

from keras_flash.layers.gated_layer import GatedLayer
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_unset
from keras_flash.ops.gated_attention_unit import gated_attention
from keras_flash.ops.gated_attention_unit_stream import gated_attention_stream
from keras_flash.ops.numerics import read

MAX_BIAS_LENGTH = 512


@keras.saving.register_keras_serializable(package="keras_flash")
class GatedAttentionUnit(GatedLayer):
    """Gated attention unit, the layer of FLASH-Quad.

        u = act(gate_dense x), v = act(value_dense x), z = act(base_dense x)
        q, k = rotary(scale_offset(z))
        a_ts = relu(q_t . k_s / n_t + bias_(s - t))^2
        y_t = output_dense(u_t * sum_s a_ts v_s)

    for query position t and key position s; u and v have
    `int(expansion_factor * d)` features, z has `key_dim`, and n_t is the number of
    keys that query t may see. Norm and residual stand outside, in the model. Hua et
    al., 2022, section 2, eq. 3-5, and appendix D, code 6.

    The cost grows with the square of the length. A causal layer computes only the
    half of the scores that its mask keeps, and no layer holds a (t, t) matrix in
    inference, where the length is known when the call is traced; with an unknown
    length the whole matrix is computed.

    Streaming: a causal layer continues a sequence by `stream`, from a key/value cache
    of fixed size that `get_initial_state(batch_size, max_length)` makes.

    Masking: masked tokens are no keys and do not count in n_t. Their own outputs
    are finite and otherwise unspecified. The mask is passed on.

    Args:
        key_dim: int, features of queries and keys. Defaults to `128`.
        expansion_factor: float, features of u and v over those of the inputs.
            Defaults to `2.0`.
        causal: bool, whether a query sees no later key. Defaults to `False`.
        attention_activation: `"relu_squared"`, `"laplace"`, `"softmax"` (then the
            scores are `q . k / sqrt(key_dim) + bias`), a Keras activation or a
            callable of one score. Defaults to `"relu_squared"`.
        normalization_length: `"visible"`, or an int that stands for n_t at every
            query: the length trained at, the paper's form. Defaults to `"visible"`.
        relative_position_bias: `"auto"`, `"toeplitz"`, `"rotary"`, `"t5"` or
            `None`, see `RelativePositionBias`, here with `max_length=512`. Defaults
            to `"auto"`.
        use_rotary: bool, whether queries and keys get rotary positions. Defaults to
            `True`.
        activation: of u, v and z. Defaults to `"silu"`.
        use_bias: bool, whether the dense sublayers have a bias. Defaults to `True`.
        dropout: float in [0, 1), the rate at what enters `output_dense`. Defaults to
            `0.0`.
        kernel_initializer: of the dense sublayers. Defaults to `"glorot_uniform"`.
        bias_initializer: of the dense sublayers. Defaults to `"zeros"`.
        remat: bool, whether training makes what is inside the layer a second time, on
            the way back, in place of keeping it: less memory, more time
            (`keras.remat`). Defaults to `False`.

    Call arguments:
        inputs: tensor `(b, t, d)`.
        mask: `(b, t)`, true = real token.
        segment_ids: int `(b, t)`: a segment is a run of equal ids, and tokens see
            their own segment only.
        inputs_mask: `(b, t)`, where Keras puts the mask of `inputs` while
            `segment_ids` is given too. ANDed with `mask`.
        training: bool, whether dropout is active.

    Returns:
        Tensor `(b, t, d)`.

    Raises:
        ValueError: for an argument outside what is listed here, for a
            `normalization_length` under softmax, and for inputs, masks or ids of
            another rank.

    Example:

    >>> layer = GatedAttentionUnit(causal=True)
    >>> y = layer(keras.random.normal((2, 7, 64)))
    """

    def __init__(
        self,
        key_dim=128,
        expansion_factor=2.0,
        causal=False,
        attention_activation="relu_squared",
        normalization_length="visible",
        relative_position_bias="auto",
        use_rotary=True,
        activation="silu",
        use_bias=True,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        remat=False,
        **kwargs,
    ):
        super().__init__(
            key_dim=key_dim,
            expansion_factor=expansion_factor,
            causal=causal,
            attention_activation=attention_activation,
            relative_position_bias=relative_position_bias,
            use_rotary=use_rotary,
            activation=activation,
            use_bias=use_bias,
            dropout=dropout,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            remat=remat,
            **kwargs,
        )
        if normalization_length != "visible":
            check_positive_int(
                "normalization_length", normalization_length, '"visible" or '
            )
        if self.attention_activation == "softmax":
            check_unset(
                "normalization_length", normalization_length, "visible", "under softmax"
            )
        self.normalization_length = normalization_length

    def build(self, inputs_shape):
        self._build(inputs_shape, num_outputs=2, max_length=MAX_BIAS_LENGTH)

    def _attend(self, views, value, mask, segment_ids):
        query, key = views
        return gated_attention(
            query,
            key,
            value,
            bias=self._bias_by_distance(keras.ops.shape(value)[1]),
            mask=mask,
            segment_ids=segment_ids,
            causal=self.causal,
            activation=self.attention_activation,
            normalization_length=self.normalization_length,
        )

    def get_initial_state(self, batch_size, max_length):
        """A key/value cache with room for `max_length` tokens.

        Args:
            batch_size: int, or a scalar int tensor.
            max_length: int. `stream` refuses to run past it; where a compiled step
                cannot see how far it has come, it gives NaN from there on.

        Returns:
            Dict of tensors, each with the batch as its first axis.

        Raises:
            ValueError: where the layer is not built or not causal, or a size is
                not positive.
        """
        check_positive_int("max_length", max_length)
        return self._make_state(batch_size, max_length=max_length)

    def _state_spec(self, max_length):
        expanded = self.value_dense.units
        return {
            "position": ((), "int32"),
            "keys": ((max_length, self.key_dim), self.compute_dtype),
            "values": ((max_length, expanded), self.compute_dtype),
        }

    def _state_spec_of(self, state):
        keys = state.get("keys") if isinstance(state, dict) else None
        shape = tuple(getattr(keys, "shape", ()))
        return self._state_spec(max_length=shape[1] if len(shape) == 3 else None)

    def _attend_stream(self, views, value, state, length):
        self._check_room(state, length)
        query, key = views
        return gated_attention_stream(
            query,
            key,
            value,
            state,
            length,
            bias=self._bias,
            activation=self.attention_activation,
            normalization_length=self.normalization_length,
        )

    def _check_room(self, state, length):
        position, added = read(state["position"]), read(length)
        max_length = state["keys"].shape[1]
        if position is None or added is None:
            return
        if (position + added <= max_length).all():
            return
        raise ValueError(
            "`inputs` must fit into the `max_length` of the state, here "
            f"{max_length}. Received: {int(added)} tokens after "
            f"{int(position.max())}"
        )

    def get_config(self):
        config = super().get_config()
        config.update(normalization_length=self.normalization_length)
        return config
