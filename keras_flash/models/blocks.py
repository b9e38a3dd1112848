"""The residual block that the Flowformer models are stacks of."""

import inspect

import keras

from keras_flash.layers.flow_attention import FlowAttention
from keras_flash.layers.layer_scale import LayerScale
from keras_flash.layers.mixed_chunk_attention import MixedChunkAttention
from keras_flash.layers.validation import check_choice
from keras_flash.layers.validation import check_positive_int

ATTENTIONS = {
    "flow_attention": FlowAttention,
    "mixed_chunk_attention": MixedChunkAttention,
}
# What a model sets itself.
OWN_OPTIONS = ("self", "num_heads", "output_dim", "causal", "dropout", "kwargs")


def check_attention(attention, attention_options, num_heads, hidden_dim):
    check_choice("attention", attention, tuple(ATTENTIONS))
    if not isinstance(attention_options, dict):
        raise ValueError(
            "`attention_options` must be a dict. "
            f"Received: attention_options={attention_options!r}"
        )
    if attention == "flow_attention":
        check_positive_int("num_heads", num_heads)
        if "key_dim" not in attention_options and hidden_dim % num_heads:
            raise ValueError(
                "`hidden_dim` must be a multiple of `num_heads`. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
            )
    elif num_heads is not None:
        raise ValueError(
            f"`num_heads` must be None with {attention!r}, which has one head. "
            f"Received: num_heads={num_heads}"
        )
    names = inspect.signature(ATTENTIONS[attention].__init__).parameters
    names = [name for name in names if name not in OWN_OPTIONS]
    for name in attention_options:
        if name not in names:
            raise ValueError(
                f"`attention_options` of {attention!r} must be among "
                f"{', '.join(names)}. Received: attention_options={attention_options}"
            )


def make_attention(
    attention, options, num_heads, hidden_dim, causal, dropout, dtype, name
):
    """The attention layer of a block.

    Mixed chunk attention has an expansion factor of 1 here, since the block has a
    feed-forward layer of its own: 3 hidden_dim^2 weights beside 4 of Flow-Attention.
    """
    more = dict(causal=causal, dropout=dropout, dtype=dtype, name=name)
    if attention == "flow_attention":
        options = {"key_dim": hidden_dim // num_heads, **options}
        return FlowAttention(num_heads, **options, **more)
    return MixedChunkAttention(**{"expansion_factor": 1.0, **options}, **more)


def residual_block(
    x,
    mask,
    attention,
    intermediate_dim,
    norm_first=True,
    activation="gelu",
    dropout=0.0,
    drop_path=0.0,
    layer_scale=None,
    dtype=None,
    name="block",
):
    """`x = x + attention(norm(x))`, then `x = x + feed_forward(norm(x))`.

    Or, with `norm_first=False`, `x = norm(x + ...)`. `drop_path` leaves a branch out
    for a sample (stochastic depth, Huang et al., 2016); `layer_scale` is the start of
    a `LayerScale` on the feed-forward branch.

    Args:
        x: symbolic tensor `(b, t, d)`.
        mask: symbolic tensor `(b, t)`, true = real token, or `None`.
        attention: layer of `make_attention`.
        ...: as in the models.

    Returns:
        Symbolic tensor `(b, t, d)`.
    """

    def norm(part):
        return keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=dtype, name=f"{name}_{part}_norm"
        )

    def residual(part, branch):
        y = norm(part)(x) if norm_first else x
        y = branch(y)
        if drop_path:
            y = keras.layers.Dropout(
                drop_path, (None, 1, 1), dtype=dtype, name=f"{name}_{part}_drop_path"
            )(y)
        y = keras.layers.Add(dtype=dtype, name=f"{name}_{part}_residual")([x, y])
        return y if norm_first else norm(part)(y)

    def attend(y):
        if isinstance(attention, FlowAttention):
            return attention(y, y, query_mask=mask, value_mask=mask)
        return attention(y, mask=mask)

    def feed_forward(y):
        hidden_dim = y.shape[-1]
        y = keras.layers.Dense(
            intermediate_dim,
            activation=activation,
            dtype=dtype,
            name=f"{name}_intermediate_dense",
        )(y)
        y = keras.layers.Dense(hidden_dim, dtype=dtype, name=f"{name}_output_dense")(y)
        y = keras.layers.Dropout(dropout, dtype=dtype, name=f"{name}_dropout")(y)
        if layer_scale is not None:
            y = LayerScale(layer_scale, dtype=dtype, name=f"{name}_layer_scale")(y)
        return y

    x = residual("attention", attend)
    return residual("feed_forward", feed_forward)
