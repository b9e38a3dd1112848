"""FlowformerCausalLM: a causal language model of Flowformer, and its preprocessor."""

import keras

from keras_flash.models.flowformer_backbone import FlowformerBackbone
from keras_flash.models.preprocessing import CausalLMPreprocessor
from keras_flash.models.streaming_causal_lm import StreamingCausalLM


@keras.saving.register_keras_serializable(package="keras_flash")
class FlowformerCausalLMPreprocessor(CausalLMPreprocessor):
    __doc__ = CausalLMPreprocessor.__doc__
    backbone_cls = FlowformerBackbone


@keras.saving.register_keras_serializable(package="keras_flash")
class FlowformerCausalLM(StreamingCausalLM):
    """Flowformer as a causal language model (Wu et al., 2022, section 4.2).

    The logits are the hidden states times the token embeddings. `generate` carries a
    state of constant size: a token costs the same at every position.

    Args:
        backbone: a `FlowformerBackbone` with `causal=True`.
        preprocessor: a `FlowformerCausalLMPreprocessor`, or `None` where inputs are
            token ids already. Defaults to `None`.

    Call arguments:
        inputs: dict of `"token_ids"`, int `(b, t)`, and `"padding_mask"`, `(b, t)`;
            `fit`, `evaluate` and `predict` take strings where there is a preprocessor.

    Returns:
        Logits `(b, t, vocabulary_size)`.

    Raises:
        ValueError: where `backbone` is not causal, and for special
            tokens that `backbone` does not know.

    Example:

    >>> tokenizer = keras_hub.tokenizers.ByteTokenizer(lowercase=False)
    >>> backbone = FlowformerBackbone(
    ...     vocabulary_size=256, num_layers=2, num_heads=4, hidden_dim=64,
    ...     intermediate_dim=256, causal=True,
    ... )
    >>> preprocessor = FlowformerCausalLMPreprocessor(tokenizer, sequence_length=128)
    >>> causal_lm = FlowformerCausalLM(backbone, preprocessor)
    >>> causal_lm.fit(["To be, or not to be"] * 8, batch_size=4)
    >>> causal_lm.compile(sampler="greedy")
    >>> text = causal_lm.generate("To be", max_length=64)
    """

    backbone_cls = FlowformerBackbone
    preprocessor_cls = FlowformerCausalLMPreprocessor
