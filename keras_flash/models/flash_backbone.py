"""FLASHBackbone: residual blocks of mixed chunk attention or gated attention units."""

import keras
import keras_hub

from keras_flash.layers.gated_attention_unit import GatedAttentionUnit
from keras_flash.layers.mixed_chunk_attention import MixedChunkAttention
from keras_flash.layers.validation import check_bool
from keras_flash.layers.validation import check_choice
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_rate
from keras_flash.layers.validation import check_unset
from keras_flash.models.quantization import KeepsQuantization

BRANCH_SCALE = 0.1  # of what a layer adds, at the start
CHUNK_SIZE = 256
PRESETS = {
    "flash_112m": {
        "metadata": {
            "description": (
                "24 layers of width 768, chunk 256: the size that Hua et al. (2022) "
                "train on C4 and Wiki-40B. No weights."
            ),
            "params": 112_039_656,
        },
        "config": {
            "vocabulary_size": 32_000,
            "num_layers": 24,
            "hidden_dim": 768,
            "chunk_size": 256,
        },
    },
    "flash_496m": {
        "metadata": {
            "description": (
                "72 layers of width 1,024, chunk 512: about the 500 M parameters that "
                "Hua et al. (2022) train on PG-19. The paper's notes give the number "
                "of parameters; depth and width are derived from it. No weights."
            ),
            "params": 495_808_512,
        },
        "config": {
            "vocabulary_size": 32_000,
            "num_layers": 72,
            "hidden_dim": 1_024,
            "chunk_size": 512,
        },
    },
}


@keras.saving.register_keras_serializable(package="keras_flash")
class FLASHBackbone(KeepsQuantization, keras_hub.models.Backbone):
    """FLASH or FLASH-Quad core network (Hua et al., 2022).

    Token embedding, `num_layers` residual blocks and a final norm:

        x = x + norm(attention(norm(x)))

    with `MixedChunkAttention` (FLASH) or `GatedAttentionUnit` (FLASH-Quad), which
    hold what would be the feed-forward layer of a Transformer. The norm before each
    layer is the paper's; the one after it is ours: a new layer gives next to nothing,
    and the norm brings that to a scale from which it learns at once. Positions enter
    by the rotations and the bias inside the layers.

    Sizes in code, by `from_preset(name, load_weights=False)`: `"flash_112m"` (24
    layers of 768, chunk 256) and `"flash_496m"` (72 layers of 1,024, chunk 512; the
    paper gives about 500 M parameters, depth and width are derived).

    Args:
        vocabulary_size: int.
        num_layers: int.
        hidden_dim: int, width of the residual stream.
        attention: `"mixed_chunk_attention"` (FLASH, linear in the length) or
            `"gated_attention_unit"` (FLASH-Quad, quadratic). Defaults to
            `"mixed_chunk_attention"`.
        causal: bool, whether a token sees no later one. Defaults to `False`.
        key_dim: int, features of queries and keys. Defaults to `128`.
        expansion_factor: float, features of the gate and the values over
            `hidden_dim`. Defaults to `2.0`.
        chunk_size: int, only for mixed chunk attention. Defaults to `256`.
        dropout: float in [0, 1), on the embeddings and inside each layer. Defaults
            to `0.0`.
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
        ValueError: for an argument outside what is listed here, and for a
            `chunk_size` with gated attention units.

    Example:

    >>> backbone = FLASHBackbone(vocabulary_size=256, num_layers=2, hidden_dim=64)
    >>> ids = np.ones((1, 12), "int32")
    >>> y = backbone({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    """

    presets = PRESETS

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        hidden_dim,
        attention="mixed_chunk_attention",
        causal=False,
        key_dim=128,
        expansion_factor=2.0,
        chunk_size=CHUNK_SIZE,
        dropout=0.0,
        remat=False,
        dtype=None,
        **kwargs,
    ):
        check_positive_int("vocabulary_size", vocabulary_size)
        check_positive_int("num_layers", num_layers)
        check_positive_int("hidden_dim", hidden_dim)
        check_choice(
            "attention", attention, ("mixed_chunk_attention", "gated_attention_unit")
        )
        check_bool("causal", causal)
        check_rate("dropout", dropout)
        check_bool("remat", remat)
        options = {}
        if attention == "gated_attention_unit":
            reason = "without chunks"
            check_unset("chunk_size", chunk_size, CHUNK_SIZE, reason)
            layer_class = GatedAttentionUnit
        else:
            layer_class, options["chunk_size"] = MixedChunkAttention, chunk_size

        # === Layers ===
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02),
            dtype=dtype,
            name="token_embedding",
        )
        self.embeddings_dropout = keras.layers.Dropout(
            dropout, dtype=dtype, name="embeddings_dropout"
        )
        self.attention_norms = []
        self.attention_layers = []
        self.output_norms = []
        for i in range(num_layers):
            self.attention_norms.append(
                keras.layers.RMSNormalization(dtype=dtype, name=f"attention_norm_{i}")
            )
            self.attention_layers.append(
                layer_class(
                    key_dim=key_dim,
                    expansion_factor=expansion_factor,
                    causal=causal,
                    dropout=dropout,
                    remat=remat,
                    dtype=dtype,
                    name=f"attention_{i}",
                    **options,
                )
            )
            self.output_norms.append(
                keras.layers.LayerNormalization(
                    epsilon=1e-6,
                    center=False,
                    gamma_initializer=keras.initializers.Constant(BRANCH_SCALE),
                    dtype=dtype,
                    name=f"output_norm_{i}",
                )
            )
        self.layer_norm = keras.layers.RMSNormalization(dtype=dtype, name="layer_norm")

        # === Functional Model ===
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        padding_mask = keras.Input((None,), dtype="int32", name="padding_mask")
        x = self.embeddings_dropout(self.token_embedding(token_ids))
        for i in range(num_layers):
            y = self.attention_norms[i](x)
            y = self.attention_layers[i](y, mask=padding_mask)
            y = self.output_norms[i](y)
            x = keras.layers.Add(dtype=dtype, name=f"residual_{i}")([x, y])
        super().__init__(
            inputs={"token_ids": token_ids, "padding_mask": padding_mask},
            outputs=self.layer_norm(x),
            dtype=dtype,
            **kwargs,
        )

        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.attention = attention
        self.causal = causal
        self.key_dim = key_dim
        self.expansion_factor = expansion_factor
        self.chunk_size = chunk_size
        self.dropout = dropout
        self.remat = remat

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """A backbone from a local preset folder, or of a size in `presets`.

        Args:
            preset: a path that `save_to_preset` wrote, or a name in `presets`.
            load_weights: bool, `False` for random ones. There are none to load for
                the names in `presets`.
            **kwargs: arguments of the constructor that take the place of the
                preset's.
        """
        if preset not in PRESETS:
            return super().from_preset(preset, load_weights=load_weights, **kwargs)
        if load_weights:
            raise ValueError(
                f"`load_weights` must be False for {preset!r}, which has none. "
                "Received: load_weights=True"
            )
        return cls(**{**PRESETS[preset]["config"], **kwargs})

    def default_lora_layer_names(self):
        return ["gate_dense", "value_dense"]

    def get_config(self):
        config = super().get_config()
        config.update(
            vocabulary_size=self.vocabulary_size,
            num_layers=self.num_layers,
            hidden_dim=self.hidden_dim,
            attention=self.attention,
            causal=self.causal,
            key_dim=self.key_dim,
            expansion_factor=self.expansion_factor,
            chunk_size=self.chunk_size,
            dropout=self.dropout,
            remat=self.remat,
        )
        return config
