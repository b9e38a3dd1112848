"""Attention for long sequences as Keras layers, on TensorFlow, JAX and torch."""

from keras_flash import layers
from keras_flash import models
from keras_flash.layers import FlowAttention
from keras_flash.layers import GatedAttentionUnit
from keras_flash.layers import MixedChunkAttention
from keras_flash.layers import RelativePositionBias
from keras_flash.layers import ScaleNorm
from keras_flash.layers import ScaleOffset
from keras_flash.layers import SinePositionEncoding
from keras_flash.models import FlowformerClassifier
from keras_flash.models import FlowformerDecisionModel
from keras_flash.models import FlowformerImageClassifier
from keras_flash.models import StreamingModel
from keras_flash.models import export

__version__ = "0.1.0"

__all__ = [
    "FlowAttention",
    "FlowformerClassifier",
    "FlowformerDecisionModel",
    "FlowformerImageClassifier",
    "GatedAttentionUnit",
    "MixedChunkAttention",
    "RelativePositionBias",
    "ScaleNorm",
    "ScaleOffset",
    "SinePositionEncoding",
    "StreamingModel",
    "export",
    "layers",
    "models",
]


def __getattr__(name):
    if name in models.TEXT_MODELS:
        return getattr(models, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*globals(), *models.TEXT_MODELS]
