"""FLASHTextClassifier: one label a text, and its preprocessor."""

import keras
import keras_hub

from keras_flash.layers.masked_mean import MaskedMean
from keras_flash.layers.validation import check_positive_int
from keras_flash.models.flash_backbone import FLASHBackbone
from keras_flash.models.preprocessing import TextPreprocessor
from keras_flash.models.preprocessing import check_special_tokens
from keras_flash.models.quantization import KeepsQuantization


@keras.saving.register_keras_serializable(package="keras_flash")
class FLASHTextClassifierPreprocessor(TextPreprocessor):
    """Strings to token ids and a padding mask.

    Args:
        tokenizer: a keras-hub tokenizer.
        sequence_length: int, the length that texts are packed to. Defaults to `512`.
        start_token_id: int, put before each text; `None` for the tokenizer's own, or
            none where it has none. Defaults to `None`.
        end_token_id: int, put after each text that has room for it. Likewise.
        pad_token_id: int, put behind. Likewise, or `0`.

    Call arguments:
        x: string, list or tensor of strings.
        y: labels, passed on.
        sample_weight: passed on.

    Returns:
        Dict of `"token_ids"` and `"padding_mask"` `(b, sequence_length)`; with `y` or
        `sample_weight` a tuple.
    """

    backbone_cls = FLASHBackbone


@keras.saving.register_keras_serializable(package="keras_flash")
class FLASHTextClassifier(KeepsQuantization, keras_hub.models.TextClassifier):
    """FLASH with a classifier over the mean of the hidden states of the real tokens.

    Args:
        backbone: a `FLASHBackbone`.
        num_classes: int.
        preprocessor: a `FLASHTextClassifierPreprocessor`, or `None` where inputs are
            token ids already. Defaults to `None`.
        activation: of the logits. Defaults to `None`.
        dropout: float in [0, 1), on the mean. Defaults to `0.0`.

    Call arguments:
        inputs: dict of `"token_ids"`, int `(b, t)`, and `"padding_mask"`, `(b, t)`;
            `fit`, `evaluate` and `predict` take strings where there is a preprocessor.

    Returns:
        Tensor `(b, num_classes)`.

    Raises:
        ValueError: where `num_classes` is not a positive integer, and for special
            tokens that `backbone` does not know.

    Example:

    >>> tokenizer = keras_hub.tokenizers.ByteTokenizer(lowercase=False)
    >>> backbone = FLASHBackbone(vocabulary_size=256, num_layers=2, hidden_dim=64)
    >>> preprocessor = FLASHTextClassifierPreprocessor(tokenizer, sequence_length=128)
    >>> classifier = FLASHTextClassifier(backbone, 2, preprocessor)
    >>> classifier.fit(["To be", "not to be"], [0, 1], batch_size=2)
    """

    backbone_cls = FLASHBackbone
    preprocessor_cls = FLASHTextClassifierPreprocessor

    def __init__(
        self,
        backbone,
        num_classes,
        preprocessor=None,
        activation=None,
        dropout=0.0,
        **kwargs,
    ):
        check_positive_int("num_classes", num_classes)
        check_special_tokens(preprocessor, backbone)
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.pooler = MaskedMean(dtype=backbone.dtype_policy, name="pooler")
        self.output_dropout = keras.layers.Dropout(
            dropout, dtype=backbone.dtype_policy, name="output_dropout"
        )
        self.output_dense = keras.layers.Dense(
            num_classes,
            activation=activation,
            dtype=backbone.dtype_policy,
            name="logits",
        )
        # === Functional Model ===
        inputs = backbone.input
        x = self.pooler(backbone(inputs), mask=inputs["padding_mask"])
        super().__init__(
            inputs=inputs, outputs=self.output_dense(self.output_dropout(x)), **kwargs
        )
        # === Config ===
        self.num_classes = num_classes
        self.activation = keras.activations.get(activation)
        self.dropout = dropout

    def get_config(self):
        config = super().get_config()
        config.update(
            num_classes=self.num_classes,
            activation=keras.activations.serialize(self.activation),
            dropout=self.dropout,
        )
        return config
