"""FLASHMaskedLM: FLASH that fills in masked tokens, and its preprocessor."""

import keras
import keras_hub

from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_share
from keras_flash.models.flash_backbone import FLASHBackbone
from keras_flash.models.preprocessing import TextPreprocessor
from keras_flash.models.preprocessing import check_special_tokens
from keras_flash.models.quantization import KeepsQuantization


@keras.saving.register_keras_serializable(package="keras_flash")
class FLASHMaskedLMPreprocessor(TextPreprocessor):
    """Strings to token ids of which some are masked, and what stood there.

    Args:
        tokenizer: a keras-hub tokenizer.
        mask_token_id: int, what stands in for a masked token, one of the
            vocabulary (for bytes 255, which no text holds); `None` for the tokenizer's
            own.
        sequence_length: int, the length that texts are packed to. Defaults to `512`.
        start_token_id: int, put before each text; `None` for the tokenizer's own, or
            none where it has none. Defaults to `None`.
        end_token_id: int, put after each text that has room for it. Likewise.
        pad_token_id: int, put behind. Likewise, or `0`.
        mask_selection_rate: float, share of the tokens to predict. Defaults to
            `0.15`.
        mask_selection_length: int, the most tokens to predict in a text. Defaults to
            `96`.
        mask_token_rate: float, share of those that become the mask token. Defaults
            to `0.8`.
        random_token_rate: float, share of those that become any token. Defaults to
            `0.1`.

    Call arguments:
        x: string, list or tensor of strings.

    Returns:
        `(x, y, sample_weight)`: dict of `"token_ids"`, `"padding_mask"`
        `(b, sequence_length)` and `"mask_positions"` `(b, mask_selection_length)`,
        the tokens that stood there, and 1 for each that is to be predicted.
    """

    backbone_cls = FLASHBackbone

    def __init__(
        self,
        tokenizer,
        mask_token_id=None,
        sequence_length=512,
        mask_selection_rate=0.15,
        mask_selection_length=96,
        mask_token_rate=0.8,
        random_token_rate=0.1,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
        self.set_special_tokens(tokenizer, mask_token_id=mask_token_id)
        if self.mask_token_id is None:
            raise ValueError(
                "`mask_token_id` must be given for a tokenizer that has none. "
                "Received: mask_token_id=None"
            )
        check_share("mask_selection_rate", mask_selection_rate)
        check_share("mask_token_rate", mask_token_rate)
        check_share("random_token_rate", random_token_rate)
        check_positive_int("mask_selection_length", mask_selection_length)
        self.mask_selection_rate = mask_selection_rate
        self.mask_selection_length = mask_selection_length
        self.mask_token_rate = mask_token_rate
        self.random_token_rate = random_token_rate
        self.masker = None

    def build(self, input_shape):
        super().build(input_shape)
        self.masker = keras_hub.layers.MaskedLMMaskGenerator(
            mask_selection_rate=self.mask_selection_rate,
            mask_selection_length=self.mask_selection_length,
            mask_token_rate=self.mask_token_rate,
            random_token_rate=self.random_token_rate,
            vocabulary_size=self.tokenizer.vocabulary_size(),
            mask_token_id=self.mask_token_id,
            unselectable_token_ids=self.special_token_ids(),
        )
        self.masker.build(None)

    def call(self, x, y=None, sample_weight=None):
        token_ids, padding_mask = self.packer(self.tokenizer(x))
        masked = self.masker(token_ids)
        x = {
            "token_ids": masked["token_ids"],
            "padding_mask": padding_mask,
            "mask_positions": masked["mask_positions"],
        }
        return keras.utils.pack_x_y_sample_weight(
            x, masked["mask_ids"], masked["mask_weights"]
        )

    def get_config(self):
        config = super().get_config()
        config.update(
            mask_token_id=self.mask_token_id,
            mask_selection_rate=self.mask_selection_rate,
            mask_selection_length=self.mask_selection_length,
            mask_token_rate=self.mask_token_rate,
            random_token_rate=self.random_token_rate,
        )
        return config


@keras.saving.register_keras_serializable(package="keras_flash")
class FLASHMaskedLM(KeepsQuantization, keras_hub.models.MaskedLM):
    """FLASH as a masked language model (Hua et al., 2022, section 4.1).

    Args:
        backbone: a `FLASHBackbone` with `causal=False`.
        preprocessor: a `FLASHMaskedLMPreprocessor`, or `None` where inputs are token
            ids already. Defaults to `None`.

    Call arguments:
        inputs: dict of `"token_ids"`, int `(b, t)`, `"padding_mask"`, `(b, t)`, and
            `"mask_positions"`, int `(b, n)`; `fit`, `evaluate` and `predict` take
            strings where there is a preprocessor.

    Returns:
        Logits at the masked positions, `(b, n, vocabulary_size)`.

    Raises:
        ValueError: where `backbone` is causal, and for special
            tokens that `backbone` does not know.

    Example:

    >>> tokenizer = keras_hub.tokenizers.ByteTokenizer(lowercase=False)
    >>> backbone = FLASHBackbone(vocabulary_size=256, num_layers=2, hidden_dim=64)
    >>> preprocessor = FLASHMaskedLMPreprocessor(
    ...     tokenizer, mask_token_id=255, sequence_length=128
    ... )
    >>> masked_lm = FLASHMaskedLM(backbone, preprocessor)
    >>> masked_lm.fit(["To be, or not to be"] * 8, batch_size=4)
    """

    backbone_cls = FLASHBackbone
    preprocessor_cls = FLASHMaskedLMPreprocessor

    def __init__(self, backbone, preprocessor=None, **kwargs):
        if backbone.causal:
            raise ValueError(
                "`backbone` must see both sides of a masked token. "
                f"Received: backbone={backbone.name!r}, causal=True"
            )
        check_special_tokens(preprocessor, backbone)
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.masked_lm_head = keras_hub.layers.MaskedLMHead(
            vocabulary_size=backbone.vocabulary_size,
            token_embedding=backbone.token_embedding,
            intermediate_activation="gelu",
            dtype=backbone.dtype_policy,
            name="mlm_head",
        )
        # === Functional Model ===
        mask_positions = keras.Input((None,), dtype="int32", name="mask_positions")
        hidden_states = backbone(backbone.input)
        super().__init__(
            inputs={**backbone.input, "mask_positions": mask_positions},
            outputs=self.masked_lm_head(hidden_states, mask_positions),
            **kwargs,
        )
