"""FlowformerClassifier: sequences of vectors or tokens to classes."""

import keras
import numpy as np
from keras import ops

from keras_flash.layers.class_token import ClassToken
from keras_flash.layers.masked_mean import MaskedMean
from keras_flash.layers.position_embedding import PositionEmbedding
from keras_flash.layers.sine_position_encoding import SinePositionEncoding
from keras_flash.layers.validation import check_bool
from keras_flash.layers.validation import check_choice
from keras_flash.layers.validation import check_ids
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_rate
from keras_flash.models.blocks import check_attention
from keras_flash.models.blocks import make_attention
from keras_flash.models.blocks import residual_block
from keras_flash.models.checked_model import CheckedModel
from keras_flash.models.checked_model import check_finite
from keras_flash.models.checked_model import check_inputs
from keras_flash.models.checked_model import check_labels
from keras_flash.models.checked_model import check_mask
from keras_flash.models.checked_model import check_num_classes
from keras_flash.models.checked_model import check_shape
from keras_flash.ops.segments import keep_where


@keras.saving.register_keras_serializable(package="keras_flash")
class FlowformerClassifier(CheckedModel):
    """Flowformer for the class of a sequence (Wu et al., 2022, sections 4.1 and 4.4).

    Embedding, positions, `num_layers` residual blocks of Flow-Attention and a
    feed-forward layer, pooling, and a dense layer to the classes. The paper's time
    series use `norm_first=False, positions="learned", pooling="flatten"`; its long
    sequences of tokens `norm_first=True, positions="sinusoidal", pooling="cls"`.

    Masking: masked tokens behind the others change nothing, whatever they hold; in
    front of them they move the positions.

    Args:
        num_classes: int, two or more.
        num_layers: int.
        num_heads: int, of Flow-Attention; `None` with FLASH, which has one head.
        hidden_dim: int, width of the residual stream.
        intermediate_dim: int, width inside the feed-forward layers.
        input_dim: int, features of each token, where inputs are vectors.
        vocabulary_size: int, where inputs are token ids. Either this or `input_dim`.
        max_length: int, the most tokens; with `pooling="flatten"` every sequence has
            this length. Wanted by learned positions and by `"flatten"` alone.
        pooling: `"mean"` over real tokens; `"cls"`, a learned token put first;
            `"flatten"`, all tokens side by side after a gelu, zeros where masked.
            Defaults to `"mean"`.
        positions: `"sinusoidal"`, `"learned"` or `None`. Defaults to `"sinusoidal"`.
        norm_first: bool, whether a norm stands before each branch or after each sum.
            Defaults to `True`.
        attention: `"flow_attention"` or `"mixed_chunk_attention"` (FLASH, with an
            expansion factor of 1). Defaults to `"flow_attention"`.
        attention_options: dict of more arguments of the attention layers, as
            `{"competition": None}` for an ablation. Defaults to none.
        dropout: float in [0, 1). Defaults to `0.1`.
        activation: of the last layer. Defaults to `None`: the outputs are logits.
        dtype: dtype policy of the model. Defaults to the global one.

    Call arguments:
        inputs: dict of `"inputs"`, `(b, t, input_dim)` or int `(b, t)`, and
            `"padding_mask"`, `(b, t)`, 1 = real token.

    Returns:
        Logits `(b, num_classes)`.

    Raises:
        ValueError: for an argument outside what is listed here; in `fit`, see
            `CheckedModel`.

    Example:

    >>> model = FlowformerClassifier(
    ...     num_classes=9, num_layers=2, num_heads=4, hidden_dim=64,
    ...     intermediate_dim=128, input_dim=12,
    ... )
    >>> x = np.random.normal(size=(2, 29, 12))
    >>> logits = model({"inputs": x, "padding_mask": np.ones((2, 29))})
    """

    def __init__(
        self,
        num_classes,
        num_layers,
        num_heads,
        hidden_dim,
        intermediate_dim,
        input_dim=None,
        vocabulary_size=None,
        max_length=None,
        pooling="mean",
        positions="sinusoidal",
        norm_first=True,
        attention="flow_attention",
        attention_options=None,
        dropout=0.1,
        activation=None,
        dtype=None,
        **kwargs,
    ):
        check_num_classes(num_classes)
        check_positive_int("num_layers", num_layers)
        check_positive_int("hidden_dim", hidden_dim)
        check_positive_int("intermediate_dim", intermediate_dim)
        if (input_dim is None) == (vocabulary_size is None):
            raise ValueError(
                "Either `input_dim` or `vocabulary_size` must be given. Received: "
                f"input_dim={input_dim}, vocabulary_size={vocabulary_size}"
            )
        if input_dim is not None:
            check_positive_int("input_dim", input_dim)
        else:
            check_positive_int("vocabulary_size", vocabulary_size)
        check_choice("pooling", pooling, ("mean", "cls", "flatten"))
        check_choice("positions", positions, ("sinusoidal", "learned", None))
        if pooling == "flatten" or positions == "learned":
            check_positive_int("max_length", max_length)
        elif max_length is not None:
            raise ValueError(
                "`max_length` must be given with learned positions or with "
                f'`pooling="flatten"` alone. Received: max_length={max_length}'
            )
        check_bool("norm_first", norm_first)
        attention_options = {} if attention_options is None else attention_options
        check_attention(attention, attention_options, num_heads, hidden_dim)
        check_rate("dropout", dropout)
        if positions == "sinusoidal" and hidden_dim % 2:
            raise ValueError(
                "`hidden_dim` must be even with sinusoidal positions. "
                f"Received: hidden_dim={hidden_dim}"
            )

        # === Layers ===
        if input_dim is not None:
            embedding = keras.layers.Dense(hidden_dim, dtype=dtype, name="embedding")
        else:
            embedding = keras.layers.Embedding(
                vocabulary_size,
                hidden_dim,
                embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0),
                dtype=dtype,
                name="embedding",
            )
        if positions == "learned":
            position_layer = PositionEmbedding(
                max_length + (pooling == "cls"), dtype=dtype, name="positions"
            )
        elif positions == "sinusoidal":
            position_layer = SinePositionEncoding(dtype=dtype, name="positions")
        attention_layers = [
            make_attention(
                attention,
                attention_options,
                num_heads,
                hidden_dim,
                causal=False,
                dropout=dropout,
                dtype=dtype,
                name=f"block_{i}_attention",
            )
            for i in range(num_layers)
        ]
        output_dense = keras.layers.Dense(
            num_classes, activation=activation, dtype=dtype, name="logits"
        )

        # === Functional Model ===
        length = max_length if pooling == "flatten" else None
        padding_mask = keras.Input((length,), dtype="int32", name="padding_mask")
        mask = ops.cast(padding_mask, "bool")
        if input_dim is not None:
            inputs = keras.Input((length, input_dim), name="inputs")
            x = embedding(keep_where(mask, inputs))
        else:
            inputs = keras.Input((length,), dtype="int32", name="inputs")
            x = embedding(ops.where(mask, inputs, 0))
        if pooling == "cls":
            x = ClassToken(dtype=dtype, name="class_token")(x)
            mask = ops.concatenate([ops.ones_like(mask[:, :1]), mask], axis=1)
        if positions is not None:
            x = keras.layers.Add(dtype=dtype, name="add_positions")(
                [x, position_layer(x)]
            )
        x = keras.layers.Dropout(dropout, dtype=dtype, name="embedding_dropout")(x)
        for i, layer in enumerate(attention_layers):
            x = residual_block(
                x,
                mask,
                layer,
                intermediate_dim,
                norm_first=norm_first,
                dropout=dropout,
                dtype=dtype,
                name=f"block_{i}",
            )
        if norm_first:
            x = keras.layers.LayerNormalization(
                epsilon=1e-6, dtype=dtype, name="final_norm"
            )(x)
        if pooling == "mean":
            x = MaskedMean(dtype=dtype, name="pooling")(x, mask=mask)
        elif pooling == "cls":
            x = x[:, 0]
        else:
            x = keras.layers.Activation("gelu", dtype=dtype, name="gelu")(x)
            x = keep_where(mask, x)
            x = keras.layers.Flatten(dtype=dtype, name="pooling")(x)
        x = keras.layers.Dropout(dropout, dtype=dtype, name="output_dropout")(x)
        super().__init__(
            inputs={"inputs": inputs, "padding_mask": padding_mask},
            outputs=output_dense(x),
            dtype=dtype,
            **kwargs,
        )

        # === Config ===
        self.num_classes = num_classes
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.input_dim = input_dim
        self.vocabulary_size = vocabulary_size
        self.max_length = max_length
        self.pooling = pooling
        self.positions = positions
        self.norm_first = norm_first
        self.attention = attention
        self.attention_options = attention_options
        self.dropout = dropout
        self.activation = keras.activations.serialize(output_dense.activation)

    def check_data(self, x, y):
        check_inputs(x, ("inputs", "padding_mask"))
        inputs, mask = x["inputs"], x["padding_mask"]
        length = self.max_length if self.pooling == "flatten" else None
        if self.input_dim is None:
            check_shape("inputs", inputs, (None, length))
        else:
            check_shape("inputs", inputs, (None, length, self.input_dim))
        check_mask("padding_mask", mask, inputs.shape[:2])
        real = mask.astype("bool")
        if self.input_dim is None:
            check_ids("inputs", inputs[real], self.vocabulary_size)
        else:
            check_finite("inputs", np.where(real[..., None], inputs, 0))
        if self.max_length is not None and inputs.shape[1] > self.max_length:
            raise ValueError(
                f"`inputs` must have at most {self.max_length} tokens, the "
                f"`max_length`. Received: inputs.shape={inputs.shape}"
            )
        check_labels(y, len(inputs), self.num_classes)
