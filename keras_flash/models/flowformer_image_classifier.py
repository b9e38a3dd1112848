"""FlowformerImageClassifier: images in stages of fewer and wider tokens."""

import keras

from keras_flash.layers.masked_mean import MaskedMean
from keras_flash.layers.position_embedding import PositionEmbedding
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_rate
from keras_flash.models.blocks import check_attention
from keras_flash.models.blocks import make_attention
from keras_flash.models.blocks import residual_block
from keras_flash.models.checked_model import CheckedModel
from keras_flash.models.checked_model import check_finite
from keras_flash.models.checked_model import check_labels
from keras_flash.models.checked_model import check_num_classes
from keras_flash.models.checked_model import check_shape


@keras.saving.register_keras_serializable(package="keras_flash")
class FlowformerImageClassifier(CheckedModel):
    """Hierarchical Flowformer for images (Wu et al., 2022, section 4.3 and table 8).

    Patches become tokens; between the stages 2 x 2 tokens become one; residual blocks
    are pre-norm, with layer scale on the feed-forward branch and drop path on both,
    whose rate grows linearly from 0 at the first block; learned positions are added
    at the first stage alone; the mean over tokens is classified.

    With the defaults at 224 x 224 and 1,000 classes the published table says 41 M
    parameters and 6.3 GFLOPs. Counted from the authors' code, and from this one, it
    is 43.3 M and 6.87 G multiply-adds.

    Args:
        num_classes: int, two or more.
        image_size: int or pair of ints, height and width in pixels. Defaults to
            `224`.
        num_channels: int. Defaults to `3`.
        num_layers: list of ints, blocks of each stage. Defaults to `(3, 3, 10, 3)`.
        hidden_dims: list of ints, width of each stage. Defaults to
            `(96, 192, 384, 768)`.
        num_heads: int, of Flow-Attention in every stage. Defaults to `12`, and with
            FLASH, which has one head, it must be `None`.
        patch_size: int, pixels that a patch is high and wide. Defaults to `4`.
        attention: `"flow_attention"` or `"mixed_chunk_attention"` (FLASH, with an
            expansion factor of 1). Defaults to `"flow_attention"`.
        attention_options: dict of more arguments of the attention layers. Defaults to
            none.
        dropout: float in [0, 1), in the attention and feed-forward layers. Defaults
            to `0.0`.
        drop_path: float in [0, 1), the rate at the last block. Defaults to `0.2`.
        activation: of the last layer. Defaults to `None`: the outputs are logits.
        dtype: dtype policy of the model. Defaults to the global one.

    Call arguments:
        inputs: images `(b, height, width, num_channels)`.

    Returns:
        Logits `(b, num_classes)`.

    Raises:
        ValueError: for an argument outside what is listed here, for sizes that the
            patches and stages do not divide; in `fit`, for images of another shape or
            that are not finite, and for labels outside the classes.

    Example:

    >>> model = FlowformerImageClassifier(
    ...     num_classes=10, image_size=28, num_channels=1, num_layers=(1, 1),
    ...     hidden_dims=(32, 64), num_heads=4, patch_size=2,
    ... )
    >>> logits = model(np.random.normal(size=(2, 28, 28, 1)))
    """

    def __init__(
        self,
        num_classes,
        image_size=224,
        num_channels=3,
        num_layers=(3, 3, 10, 3),
        hidden_dims=(96, 192, 384, 768),
        num_heads=None,
        patch_size=4,
        attention="flow_attention",
        attention_options=None,
        dropout=0.0,
        drop_path=0.2,
        activation=None,
        dtype=None,
        **kwargs,
    ):
        check_num_classes(num_classes)
        size = (image_size,) * 2 if isinstance(image_size, int) else tuple(image_size)
        if len(size) != 2:
            raise ValueError(
                "`image_size` must be an int or a pair of ints. "
                f"Received: image_size={image_size}"
            )
        for side in size:
            check_positive_int("image_size", side)
        check_positive_int("num_channels", num_channels)
        check_positive_int("patch_size", patch_size)
        for name, values in (("num_layers", num_layers), ("hidden_dims", hidden_dims)):
            if not isinstance(values, (list, tuple)):
                raise ValueError(
                    f"`{name}` must be a list with a number for each stage. "
                    f"Received: {name}={values!r}"
                )
        num_layers, hidden_dims = list(num_layers), list(hidden_dims)
        if len(num_layers) != len(hidden_dims) or not num_layers:
            raise ValueError(
                "`num_layers` and `hidden_dims` must have one number for each stage. "
                f"Received: num_layers={num_layers}, hidden_dims={hidden_dims}"
            )
        attention_options = {} if attention_options is None else attention_options
        if num_heads is None and attention == "flow_attention":
            num_heads = 12
        for layers, hidden_dim in zip(num_layers, hidden_dims):
            check_positive_int("num_layers", layers)
            check_positive_int("hidden_dims", hidden_dim)
            check_attention(attention, attention_options, num_heads, hidden_dim)
        factor = patch_size * 2 ** (len(num_layers) - 1)
        if any(side % factor for side in size):
            raise ValueError(
                f"`image_size` must be a multiple of {factor}: `patch_size`, times 2 "
                f"for each stage but the first. Received: image_size={image_size}"
            )
        check_rate("dropout", dropout)
        check_rate("drop_path", drop_path)

        # === Layers ===
        def merge(hidden_dim, side, name):
            """`side` x `side` pixels or tokens become one."""
            return keras.layers.Conv2D(
                hidden_dim,
                side,
                strides=side,
                data_format="channels_last",
                dtype=dtype,
                name=name,
            )

        # === Functional Model ===
        inputs = keras.Input((*size, num_channels), name="images")
        x, done = inputs, 0
        for stage, (layers, hidden_dim) in enumerate(zip(num_layers, hidden_dims)):
            if stage == 0:
                x = merge(hidden_dim, patch_size, "patch_embedding")(x)
            else:
                x = merge(hidden_dim, 2, f"stage_{stage}_downsampling")(x)
            grid = tuple(x.shape[1:3])
            x = keras.layers.Reshape(
                (grid[0] * grid[1], hidden_dim), dtype=dtype, name=f"tokens_{stage}"
            )(x)
            if stage == 0:
                positions = PositionEmbedding(
                    x.shape[1], dtype=dtype, name="positions"
                )(x)
                x = keras.layers.Add(dtype=dtype, name="add_positions")([x, positions])
            for i in range(layers):
                name = f"stage_{stage}_block_{i}"
                layer = make_attention(
                    attention,
                    attention_options,
                    num_heads,
                    hidden_dim,
                    causal=False,
                    dropout=dropout,
                    dtype=dtype,
                    name=f"{name}_attention",
                )
                x = residual_block(
                    x,
                    None,
                    layer,
                    4 * hidden_dim,
                    dropout=dropout,
                    drop_path=drop_path * done / max(sum(num_layers) - 1, 1),
                    layer_scale=1e-5,
                    dtype=dtype,
                    name=name,
                )
                done += 1
            if stage < len(num_layers) - 1:
                x = keras.layers.Reshape(
                    (*grid, hidden_dim), dtype=dtype, name=f"grid_{stage}"
                )(x)
        x = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=dtype, name="final_norm"
        )(x)
        x = MaskedMean(dtype=dtype, name="pooling")(x)
        output_dense = keras.layers.Dense(
            num_classes, activation=activation, dtype=dtype, name="logits"
        )
        super().__init__(inputs=inputs, outputs=output_dense(x), dtype=dtype, **kwargs)

        # === Config ===
        self.num_classes = num_classes
        self.image_size = list(size)
        self.num_channels = num_channels
        self.num_layers = num_layers
        self.hidden_dims = hidden_dims
        self.num_heads = num_heads
        self.patch_size = patch_size
        self.attention = attention
        self.attention_options = attention_options
        self.dropout = dropout
        self.drop_path = drop_path
        self.activation = keras.activations.serialize(output_dense.activation)

    def check_data(self, x, y):
        check_shape("x", x, (None, *self.image_size, self.num_channels))
        check_finite("x", x)
        check_labels(y, len(x), self.num_classes)
