"""FlowformerBackbone: pre-norm blocks of Flow-Attention and feed-forward."""

import keras
import keras_hub

from keras_flash.layers.sine_position_encoding import SinePositionEncoding
from keras_flash.layers.validation import check_bool
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_rate
from keras_flash.models.blocks import make_attention
from keras_flash.models.blocks import residual_block
from keras_flash.models.quantization import KeepsQuantization


@keras.saving.register_keras_serializable(package="keras_flash")
class FlowformerBackbone(KeepsQuantization, keras_hub.models.Backbone):
    """Flowformer core network for text (Wu et al., 2022).

    Token embedding and sinusoidal positions, `num_layers` pre-norm blocks and a final
    norm:

        x = x + flow_attention(norm(x))
        x = x + feed_forward(norm(x))

    Args:
        vocabulary_size: int.
        num_layers: int.
        num_heads: int.
        hidden_dim: int, width of the residual stream, a multiple of `num_heads`, even.
        intermediate_dim: int, hidden features of the feed-forward layer.
        causal: bool, whether a token sees no later one. Defaults to `False`.
        dropout: float in [0, 1), on the embeddings, at what enters the last layer of
            the attention, and after the feed-forward. Defaults to `0.1`.
        remat: bool, whether training makes what is inside an attention layer a second
            time, on the way back, in place of keeping it: less memory, more time
            (`keras.remat`). Defaults to `False`.
        dtype: dtype policy of the model. Defaults to the global one.

    Call arguments:
        inputs: dict of `"token_ids"`, int `(b, t)`, and `"padding_mask"`, `(b, t)`,
            1 = real token.

    Returns:
        Tensor `(b, t, hidden_dim)`.

    Raises:
        ValueError: for an argument outside what is listed here.

    Example:

    >>> backbone = FlowformerBackbone(
    ...     vocabulary_size=256, num_layers=2, num_heads=4, hidden_dim=64,
    ...     intermediate_dim=256,
    ... )
    >>> ids = np.ones((1, 12), "int32")
    >>> y = backbone({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        num_heads,
        hidden_dim,
        intermediate_dim,
        causal=False,
        dropout=0.1,
        remat=False,
        dtype=None,
        **kwargs,
    ):
        check_positive_int("vocabulary_size", vocabulary_size)
        check_positive_int("num_layers", num_layers)
        check_positive_int("num_heads", num_heads)
        check_positive_int("hidden_dim", hidden_dim)
        check_positive_int("intermediate_dim", intermediate_dim)
        check_bool("causal", causal)
        check_rate("dropout", dropout)
        check_bool("remat", remat)
        if hidden_dim % num_heads or hidden_dim % 2:
            raise ValueError(
                "`hidden_dim` must be even and a multiple of `num_heads`. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
            )

        # === Layers ===
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=hidden_dim**-0.5
            ),
            dtype=dtype,
            name="token_embedding",
        )
        self.position_encoding = SinePositionEncoding(
            dtype=dtype, name="position_encoding"
        )
        self.embeddings_dropout = keras.layers.Dropout(
            dropout, dtype=dtype, name="embeddings_dropout"
        )
        self.attention_layers = [
            make_attention(
                "flow_attention",
                {"remat": remat},
                num_heads,
                hidden_dim,
                causal=causal,
                dropout=dropout,
                dtype=dtype,
                name=f"block_{i}_attention",
            )
            for i in range(num_layers)
        ]
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=dtype, name="layer_norm"
        )

        # === Functional Model ===
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        padding_mask = keras.Input((None,), dtype="int32", name="padding_mask")
        # To the size of the positions; the logits, tied, stay at theirs. (Not by
        # `Rescaling`: beside TensorFlow, torch.compile cannot trace it.)
        x = self.token_embedding(token_ids) * hidden_dim**0.5
        positions = self.position_encoding(x)
        x = keras.layers.Add(dtype=dtype, name="embeddings_add")([x, positions])
        x = self.embeddings_dropout(x)
        for i, layer in enumerate(self.attention_layers):
            x = residual_block(
                x,
                padding_mask,
                layer,
                intermediate_dim,
                dropout=dropout,
                dtype=dtype,
                name=f"block_{i}",
            )
        super().__init__(
            inputs={"token_ids": token_ids, "padding_mask": padding_mask},
            outputs=self.layer_norm(x),
            dtype=dtype,
            **kwargs,
        )

        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.causal = causal
        self.dropout = dropout
        self.remat = remat

    def get_config(self):
        config = super().get_config()
        config.update(
            vocabulary_size=self.vocabulary_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            hidden_dim=self.hidden_dim,
            intermediate_dim=self.intermediate_dim,
            causal=self.causal,
            dropout=self.dropout,
            remat=self.remat,
        )
        return config
