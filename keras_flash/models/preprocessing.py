"""What the text preprocessors share: special tokens, packing, checks of prompts."""

import keras
import keras_hub
import numpy as np

from keras_flash.layers.validation import check_ids

SPECIAL_TOKENS = ("start_token_id", "end_token_id", "pad_token_id")


class SpecialTokens:
    """Special tokens by id, for tokenizers that know none, as bytes do.

    A mixin for preprocessors. An id that is not given is the tokenizer's own, where
    it has one.
    """

    tokenizer_cls = keras_hub.tokenizers.Tokenizer  # any

    def set_special_tokens(self, tokenizer, **ids):
        for name, value in ids.items():
            own = getattr(tokenizer, name, None)
            setattr(self, name, own if value is None else value)
        if self.pad_token_id is None:
            self.pad_token_id = 0
        # `quantize` of a task asks each layer to be built, those that hold text too.
        if not tokenizer.built:
            tokenizer.build(None)
        # ByteTokenizer has no files; keras-hub 0.32 saves and loads them all the same.
        if not hasattr(tokenizer, "save_assets"):
            tokenizer.save_assets = lambda directory: None

    def load_preset_assets(self, preset):
        if getattr(self.tokenizer, "file_assets", None):
            super().load_preset_assets(preset)

    def build(self, input_shape):
        self.packer = keras_hub.layers.StartEndPacker(
            start_value=self.start_token_id,
            end_value=self.end_token_id,
            pad_value=self.pad_token_id,
            sequence_length=self.sequence_length,
            return_padding_mask=True,
        )
        self.packer.build(None)
        self.built = True

    def get_config(self):
        config = super().get_config()
        config.update({name: getattr(self, name) for name in SPECIAL_TOKENS})
        return config

    def special_token_ids(self):
        ids = {getattr(self, name) for name in SPECIAL_TOKENS}
        return sorted(ids - {None})


def check_special_tokens(preprocessor, backbone):
    """Special tokens are of the vocabulary of the backbone that will embed them."""
    for name in (*SPECIAL_TOKENS, "mask_token_id"):
        value = getattr(preprocessor, name, None)
        if value is None:
            continue
        size = backbone.vocabulary_size
        if np.ndim(value):
            raise ValueError(
                f"`{name}` must be a token id from 0 to {size - 1}. "
                f"Received: {name}={value!r}"
            )
        check_ids(name, value, size)


class CausalLMPreprocessor(SpecialTokens, keras_hub.models.CausalLMPreprocessor):
    """Strings to token ids, labels and weights for causal language models.

    Args:
        tokenizer: a keras-hub tokenizer.
        sequence_length: int, the length that texts are packed to. Defaults to
            `1024`.
        start_token_id: int, put before each text; `None` for the tokenizer's own, or
            none where it has none. Defaults to `None`.
        end_token_id: int, put after each text that has room for it, and where
            generation stops. Likewise.
        pad_token_id: int, put behind. Likewise, or `0`.
        add_start_token: bool. Defaults to `True`.
        add_end_token: bool. Defaults to `True`.

    Call arguments:
        x: string, list or tensor of strings.

    Returns:
        `(x, y, sample_weight)`: dict of `"token_ids"` and `"padding_mask"`
        `(b, sequence_length)`, the next tokens, and 1 where there is one.
    """

    def __init__(
        self,
        tokenizer,
        sequence_length=1024,
        start_token_id=None,
        end_token_id=None,
        pad_token_id=None,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
        self.set_special_tokens(
            tokenizer,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
            pad_token_id=pad_token_id,
        )

    def generate_preprocess(self, x, sequence_length=None):
        """Prompts to token ids and a mask of `sequence_length`.

        Raises:
            ValueError: for an empty prompt, and for one that is longer than
                `sequence_length`, wherever the strings can be read.
        """
        if not self.built:
            self.build(None)
        room = self.sequence_length if sequence_length is None else sequence_length
        starts = self.add_start_token and self.start_token_id is not None
        for length in self._token_counts(x):
            if length + starts == 0:
                raise ValueError(
                    "Each prompt must have at least one token where there is no start "
                    f"token. Received: an empty prompt in inputs={x!r}"
                )
            if length + starts > room:
                raise ValueError(
                    "`max_length` must hold each prompt, start token included. "
                    f"Received: max_length={room}, a prompt of {length + starts} tokens"
                )
        return super().generate_preprocess(x, sequence_length=sequence_length)

    def _token_counts(self, x):
        if isinstance(x, (str, bytes)):
            x = [x]
        try:
            return [len(row) for row in self.tokenizer(x)]
        except TypeError:  # a graph is traced
            return []

    def generate_postprocess(self, x):
        ids = keras.ops.convert_to_numpy(x["token_ids"])
        mask = keras.ops.convert_to_numpy(x["padding_mask"]).astype("bool")
        # The mask leaves padding out: 0 may be a token of texts too.
        special = [self.start_token_id, self.end_token_id]
        mask = mask & ~np.isin(ids, [token for token in special if token is not None])
        return super().generate_postprocess({"token_ids": ids, "padding_mask": mask})


class TextPreprocessor(SpecialTokens, keras_hub.models.Preprocessor):
    """Strings to token ids and a padding mask, for encoders."""

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        start_token_id=None,
        end_token_id=None,
        pad_token_id=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length
        self.packer = None
        self.set_special_tokens(
            tokenizer,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
            pad_token_id=pad_token_id,
        )

    def call(self, x, y=None, sample_weight=None):
        token_ids, padding_mask = self.packer(self.tokenizer(x))
        x = {"token_ids": token_ids, "padding_mask": padding_mask}
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def get_config(self):
        config = super().get_config()
        config.update(sequence_length=self.sequence_length)
        return config
