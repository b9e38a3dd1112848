"""Models made of the layers, and what works on whole models.

Text models stand on keras-hub and load on first use.
"""

import importlib

from keras_flash.models.streaming_model import StreamingModel

TEXT_MODELS = {
    "FLASHBackbone": "flash_backbone",
    "FLASHCausalLM": "flash_causal_lm",
    "FLASHCausalLMPreprocessor": "flash_causal_lm",
    "FLASHMaskedLM": "flash_masked_lm",
    "FLASHMaskedLMPreprocessor": "flash_masked_lm",
    "FLASHTextClassifier": "flash_text_classifier",
    "FLASHTextClassifierPreprocessor": "flash_text_classifier",
    "FlowformerBackbone": "flowformer_backbone",
    "FlowformerCausalLM": "flowformer_causal_lm",
    "FlowformerCausalLMPreprocessor": "flowformer_causal_lm",
}

__all__ = ["StreamingModel", *TEXT_MODELS]


def __getattr__(name):
    if name not in TEXT_MODELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import keras_hub  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f'{name} needs keras-hub: pip install "keras-flash[nlp]"'
        ) from error
    return getattr(importlib.import_module(f"{__name__}.{TEXT_MODELS[name]}"), name)
