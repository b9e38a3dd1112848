"""Models made of the layers, and what works on whole models.

Text models stand on keras-hub and load on first use.
"""

import importlib
import sys

import keras

from keras_flash.models.exporting import export
from keras_flash.models.flowformer_classifier import FlowformerClassifier
from keras_flash.models.flowformer_decision_model import FlowformerDecisionModel
from keras_flash.models.flowformer_image_classifier import FlowformerImageClassifier
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

__all__ = [
    "FlowformerClassifier",
    "FlowformerDecisionModel",
    "FlowformerImageClassifier",
    "StreamingModel",
    "export",
]


def __getattr__(name):
    if name not in TEXT_MODELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import keras_hub  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "keras_hub":
            raise
        raise ImportError(
            f'{name} needs keras-hub: pip install "keras-flash[nlp]"'
        ) from error
    return getattr(importlib.import_module(f"{__name__}.{TEXT_MODELS[name]}"), name)


def __dir__():
    return [*globals(), *TEXT_MODELS]


def _stand_in(name):
    """What Keras finds under the name of a text model before it is loaded."""

    def from_config(config):
        return __getattr__(name).from_config(config)

    return type(name, (), {"from_config": staticmethod(from_config)})


# A file names its classes; Keras must find them with no more than this package
# imported. keras-hub itself asks for the classes, so where it is loaded they are too.
for _name in TEXT_MODELS:
    if sys.modules.get("keras_hub"):
        __getattr__(_name)
    else:
        keras.saving.get_custom_objects()[f"keras_flash>{_name}"] = _stand_in(_name)
