"""MixedChunkAttention: the gated attention unit at linear cost."""

import keras

from keras_flash.layers.gated_layer import GatedLayer
from keras_flash.layers.validation import check_bool
from keras_flash.layers.validation import check_choice
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_unset
from keras_flash.ops.activations import relu_squared
from keras_flash.ops.mixed_chunk_attention import mixed_chunk_attention
from keras_flash.ops.mixed_chunk_attention_stream import mixed_chunk_attention_stream

BRANCHES = ("both", "local", "global")
NORMALIZATIONS = ("mean", "chunk", "sum")


@keras.saving.register_keras_serializable(package="keras_flash")
class MixedChunkAttention(GatedLayer):
    """Mixed chunk attention, the layer of FLASH.

        u = act(gate_dense x), v = act(value_dense x), z = act(base_dense x)
        q, k, q', k' = rotary(scale_offset(z))
        local_t = sum_s relu(q_t . k_s / C + bias_(s - t))^2 v_s
        global_t = q'_t . sum_s k'_s v_s^T / m
        y_t = output_dense(u_t * (local_t + global_t))

    for query position t and key position s. The local sum runs over the chunk of C
    = `chunk_size` tokens that holds t, the global one over all chunks, or when
    causal over the strictly earlier ones. Rotary positions run over the whole
    sequence, the bias over the chunk. Norm and residual stand outside, in the model.
    Hua et al., 2022, section 3.2, eq. 7-8, and appendix D, code 8.

    Time and memory are linear in the length. Any length works; padding to whole
    chunks is internal and leaves no trace.

    Streaming: a causal layer continues a sequence by `stream`, at a cost a token and
    with a state, one chunk of keys and values and two (key_dim, e) matrices, that do
    not depend on the position.

    Masking: masked tokens are no keys and do not count in m. Their own outputs are
    finite and otherwise unspecified. The mask is passed on.

    Segments may start anywhere, and nothing crosses their borders. Where they start
    on chunk borders, the packed result equals separate calls.

    Args:
        key_dim: int, features of queries and keys. Defaults to `128`.
        expansion_factor: float, features of u and v over those of the inputs.
            Defaults to `2.0`.
        chunk_size: int, C. Defaults to `256`.
        causal: bool, whether a query sees no later key. Defaults to `False`.
        branches: `"both"`, `"local"` or `"global"`: which sums are made (the
            paper's ablations). Defaults to `"both"`.
        scale_scores: bool, whether local scores are divided by C (the listing) or
            not (the equations). Defaults to `True`.
        global_normalization: `"mean"`: m is the number of keys summed; `"chunk"`:
            m = C (the listing); `"sum"`: m = 1 (the equations). A global sum of no
            keys is 0. Defaults to `"mean"`.
        attention_activation: of the local scores: `"relu_squared"`, `"laplace"`,
            `"softmax"` (then the scores are `q . k / sqrt(key_dim) + bias`), a Keras
            activation or a callable of one score. Defaults to `"relu_squared"`.
        relative_position_bias: `"auto"`, `"toeplitz"`, `"rotary"`, `"t5"` or
            `None`, see `RelativePositionBias`, here with `max_length=chunk_size`.
            Defaults to `"auto"`.
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
        ValueError: for an argument outside what is listed here, for one that
            another choice makes meaningless (`scale_scores` under softmax,
            `global_normalization` without the global branch; `scale_scores`,
            `attention_activation` and `relative_position_bias` without the local
            one), and for inputs, masks or ids of another rank.

    Example:

    >>> layer = MixedChunkAttention(chunk_size=64, causal=True)
    >>> y = layer(keras.random.normal((2, 300, 64)))
    """

    def __init__(
        self,
        key_dim=128,
        expansion_factor=2.0,
        chunk_size=256,
        causal=False,
        branches="both",
        scale_scores=True,
        global_normalization="mean",
        attention_activation="relu_squared",
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
        check_positive_int("chunk_size", chunk_size)
        check_choice("branches", branches, BRANCHES)
        check_bool("scale_scores", scale_scores)
        check_choice("global_normalization", global_normalization, NORMALIZATIONS)
        if self.attention_activation == "softmax":
            check_unset("scale_scores", scale_scores, True, "under softmax")
        if branches == "local":
            reason = 'with branches="local"'
            check_unset("global_normalization", global_normalization, "mean", reason)
        if branches == "global":
            reason = 'with branches="global"'
            if self.attention_activation is not relu_squared:
                check_unset(
                    "attention_activation", attention_activation, "relu_squared", reason
                )
            check_unset("scale_scores", scale_scores, True, reason)
            check_unset(
                "relative_position_bias", relative_position_bias, "auto", reason
            )
        self.chunk_size = chunk_size
        self.branches = branches
        self.scale_scores = scale_scores
        self.global_normalization = global_normalization

    def build(self, inputs_shape):
        self._build(
            inputs_shape,
            num_outputs=4 if self.branches == "both" else 2,
            max_length=None if self.branches == "global" else self.chunk_size,
        )

    def _attend(self, views, value, mask, segment_ids):
        return mixed_chunk_attention(
            None if self.branches == "global" else views[:2],
            None if self.branches == "local" else views[-2:],
            value,
            self.chunk_size,
            bias=self._bias_by_distance(self.chunk_size),
            mask=mask,
            segment_ids=segment_ids,
            causal=self.causal,
            activation=self.attention_activation,
            scale_scores=self.scale_scores,
            global_normalization=self.global_normalization,
        )

    def _state_spec(self):
        expanded = self.value_dense.units
        spec = {"position": ((), "int32")}
        if self.branches != "global":
            spec["keys"] = ((self.chunk_size, self.key_dim), self.compute_dtype)
            spec["values"] = ((self.chunk_size, expanded), self.compute_dtype)
        if self.branches != "local":
            spec["summary"] = ((self.key_dim, expanded), self._sum_dtype)
            spec["pending"] = ((self.key_dim, expanded), self._sum_dtype)
        return spec

    def _attend_stream(self, views, value, state, length):
        return mixed_chunk_attention_stream(
            None if self.branches == "global" else views[:2],
            None if self.branches == "local" else views[-2:],
            value,
            state,
            length,
            self.chunk_size,
            bias=self._bias,
            activation=self.attention_activation,
            scale_scores=self.scale_scores,
            global_normalization=self.global_normalization,
        )

    def get_config(self):
        config = super().get_config()
        config.update(
            chunk_size=self.chunk_size,
            branches=self.branches,
            scale_scores=self.scale_scores,
            global_normalization=self.global_normalization,
        )
        return config
