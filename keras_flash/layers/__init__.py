"""Layers to put beside those of `keras.layers`."""

from keras_flash.layers.flow_attention import FlowAttention
from keras_flash.layers.gated_attention_unit import GatedAttentionUnit
from keras_flash.layers.mixed_chunk_attention import MixedChunkAttention
from keras_flash.layers.relative_position_bias import RelativePositionBias
from keras_flash.layers.scale_norm import ScaleNorm
from keras_flash.layers.scale_offset import ScaleOffset
from keras_flash.layers.sine_position_encoding import SinePositionEncoding

__all__ = [
    "FlowAttention",
    "GatedAttentionUnit",
    "MixedChunkAttention",
    "RelativePositionBias",
    "ScaleNorm",
    "ScaleOffset",
    "SinePositionEncoding",
]
