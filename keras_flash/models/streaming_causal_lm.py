"""StreamingCausalLM: generation from a state, at a constant cost a token."""

import keras_hub
import numpy as np
from keras import ops

from keras_flash.layers.validation import check_ids
from keras_flash.models.preprocessing import check_special_tokens
from keras_flash.models.quantization import KeepsQuantization
from keras_flash.models.streaming_model import StreamingModel


class StreamingCausalLM(KeepsQuantization, keras_hub.models.CausalLM):
    """A causal language model whose backbone can be streamed.

    A subclass gives `backbone_cls` and `preprocessor_cls`.

    Args:
        backbone: a causal backbone.
        preprocessor: a `keras_hub.models.CausalLMPreprocessor`, or `None` where
            inputs are token ids already. Defaults to `None`.
    """

    def __init__(self, backbone, preprocessor=None, **kwargs):
        if not backbone.causal:
            raise ValueError(
                "`backbone` must be causal to model the next token. "
                f"Received: backbone={backbone.name!r}, causal=False"
            )
        check_special_tokens(preprocessor, backbone)
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        # === Functional Model ===
        inputs = backbone.input
        hidden_states = backbone(inputs)
        outputs = backbone.token_embedding(hidden_states, reverse=True)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self._streaming = StreamingModel(backbone)

    def get_initial_state(self, batch_size, max_length=None):
        """The state before the first token; see `StreamingModel`."""
        return self._streaming.get_initial_state(batch_size, max_length)

    def stream(self, token_ids, state, length=None):
        """Continues a text by a piece of any length.

        Args:
            token_ids: int `(b, t)`.
            state: what `get_initial_state` or the previous `stream` gave.
            length: int or scalar int tensor from 0 to t: only so many tokens are
                consumed. Defaults to all.

        Returns:
            Logits of the next tokens, `(b, t, vocabulary_size)`, and the new state.
        """
        hidden_states, state = self._stream_hidden(token_ids, state, length)
        return self.backbone.token_embedding(hidden_states, reverse=True), state

    def _stream_hidden(self, token_ids, state, length=None):
        token_ids = ops.convert_to_tensor(token_ids, dtype="int32")
        inputs = {"token_ids": token_ids, "padding_mask": ops.ones_like(token_ids)}
        return self._streaming.stream(inputs, state, length)

    def generate(
        self, inputs, max_length=None, stop_token_ids="auto", strip_prompt=False
    ):
        """Continues prompts. See `keras_hub.models.CausalLM.generate`.

        The state has one size whatever `max_length` is, unless the backbone has
        gated attention units, which keep a key/value cache of that length. Prompts
        may differ in length: each gives what it gives alone.

        Raises:
            ValueError: for an empty prompt, a prompt longer than `max_length`, token
                ids outside the vocabulary, and padding that is not behind the prompt.
        """
        if stop_token_ids == "auto" and self.preprocessor is not None:
            tokenizer = self.preprocessor.tokenizer
            end = getattr(tokenizer, "end_token_id", None)
            end = getattr(self.preprocessor, "end_token_id", end)
            stop_token_ids = None if end is None else [end]
        stop_token_ids = stop_token_ids or None  # no stop tokens
        return super().generate(inputs, max_length, stop_token_ids, strip_prompt)

    def make_generate_function(self):
        generate = super().make_generate_function()

        def checked(inputs, stop_token_ids=None):
            if not isinstance(inputs, dict) or set(inputs) != set(self.input):
                given = sorted(inputs) if isinstance(inputs, dict) else type(inputs)
                raise ValueError(
                    "`inputs` must be strings where there is a preprocessor, else a "
                    "dict of token_ids and padding_mask. "
                    f"Received: inputs={given}"
                )
            self._check_prompts(**inputs)
            return generate(inputs, stop_token_ids=stop_token_ids)

        return checked

    def _check_prompts(self, token_ids, padding_mask):
        check_ids("token_ids", token_ids, self.backbone.vocabulary_size)
        mask = np.asarray(ops.convert_to_numpy(padding_mask)).astype("bool")
        if not mask.any(axis=-1).all():
            raise ValueError(
                "Each prompt must have at least one token. "
                f"Received: lengths={mask.sum(axis=-1).tolist()}"
            )
        if (mask[:, 1:] & ~mask[:, :-1]).any():
            raise ValueError(
                "`padding_mask` must be 1 for the prompt and 0 behind it. Received: "
                "padding_mask with a 1 after a 0"
            )

    def generate_step(self, inputs, stop_token_ids=None):
        """Generation for one batch, which XLA compiles.

        Args:
            inputs: dict of `"token_ids"` and `"padding_mask"`, `(b, max_length)`.
            stop_token_ids: ids that end a text, or `None`.

        Returns:
            Dict of the same, continued.
        """
        token_ids, padding_mask = inputs["token_ids"], inputs["padding_mask"]
        padding_mask = ops.cast(padding_mask, "bool")
        batch_size, max_length = ops.shape(token_ids)[0], token_ids.shape[1]
        # The sampler starts where the shortest prompt ends, and feeds the token
        # before. So the state has consumed all tokens before that one, no more.
        lengths = ops.sum(ops.cast(padding_mask, "int32"), axis=-1)
        index = ops.min(lengths)
        state = self.get_initial_state(batch_size, max_length)
        hidden_states, state = self._stream_hidden(token_ids, state, length=index - 1)

        def next(prompt, state, index):
            token = ops.slice(prompt, [0, index - 1], [ops.shape(prompt)[0], 1])
            hidden, state = self._stream_hidden(token, state)
            logits = self.backbone.token_embedding(hidden, reverse=True)
            return ops.squeeze(logits, axis=1), ops.squeeze(hidden, axis=1), state

        # What stands behind the prompts may be a stop token; -1 is none.
        generated = self.sampler(
            next=next,
            prompt=ops.where(padding_mask, token_ids, -1),
            cache=state,
            index=index,
            mask=padding_mask,
            stop_token_ids=stop_token_ids,
            hidden_states=hidden_states,
            model=self,
        )
        token_ids = ops.where(generated < 0, token_ids, generated)
        if stop_token_ids is None:
            padding_mask = ops.ones_like(padding_mask)
        else:
            padding_mask = _up_to_stop(generated, padding_mask, stop_token_ids)
        return {"token_ids": token_ids, "padding_mask": padding_mask}


def _up_to_stop(token_ids, is_prompt, stop_token_ids):
    """True up to the first stop token behind the prompt, that one included."""
    ended = ops.zeros_like(is_prompt)
    for stop in stop_token_ids:
        ended = ops.logical_or(ended, ops.equal(token_ids, stop))
    ended = ops.cast(ops.logical_and(ended, ops.logical_not(is_prompt)), "int32")
    return ops.equal(ops.cumsum(ended, axis=-1) - ended, 0)
