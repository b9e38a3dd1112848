"""Every layer with every option that changes its result, small."""

import functools

import keras

from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention
from tests import helpers
from tests.reference import layers as reference

WIDTH = 6
CHUNK = 4
GATED = dict(key_dim=4, expansion_factor=1.5)
MIXED = dict(GATED, chunk_size=CHUNK)
FLOW = dict(num_heads=2, key_dim=3)

GATED_OPTIONS = {
    "plain": {},
    "laplace": dict(attention_activation="laplace"),
    "softmax": dict(attention_activation="softmax"),
    "callable": dict(attention_activation=keras.activations.sigmoid),
    "toeplitz": dict(relative_position_bias="toeplitz"),
    "rotary": dict(relative_position_bias="rotary"),
    "t5": dict(relative_position_bias="t5"),
    # With no bias and n_t in the divisor squared relu would leave next to nothing.
    "unbiased": dict(relative_position_bias=None, attention_activation="softmax"),
    "no_rotary": dict(use_rotary=False),
    "no_dense_bias": dict(use_bias=False, relative_position_bias="t5"),
}
OPTIONS = {
    GatedAttentionUnit: (
        GATED,
        {**GATED_OPTIONS, "constant": dict(normalization_length=7)},
    ),
    MixedChunkAttention: (
        MIXED,
        {
            **GATED_OPTIONS,
            "local": dict(branches="local"),
            "local_softmax": dict(branches="local", attention_activation="softmax"),
            "global": dict(branches="global"),
            "unscaled": dict(scale_scores=False),
            "chunk": dict(global_normalization="chunk"),
            "sum": dict(global_normalization="sum"),
        },
    ),
    FlowAttention: (
        FLOW,
        {
            "plain": {},
            "elu": dict(feature_map="elu"),
            "relu": dict(feature_map="relu"),
            "sigmoid_competition": dict(competition="sigmoid"),
            "no_competition": dict(competition=None),
            "softmax_allocation": dict(allocation="softmax"),
            "no_allocation": dict(allocation=None),
            "clip": dict(competition_clip=1.0),
            "value_dim": dict(value_dim=5),
        },
    ),
}


def _variants():
    for layer_class, (common, options) in OPTIONS.items():
        for causal in (False, True):
            for name, option in options.items():
                if causal and option.get("allocation") == "softmax":
                    continue  # a ValueError, see tests/layers/test_config.py
                label = "causal" if causal else "full"
                key = f"{layer_class.__name__}-{label}-{name}"
                yield key, (layer_class, dict(common, causal=causal, **option))


VARIANTS = dict(_variants())
CAUSAL = [name for name, (_, options) in VARIANTS.items() if options["causal"]]
GATED_VARIANTS = [name for name in VARIANTS if not name.startswith("Flow")]


def is_flow(name):
    return name.startswith("Flow")


@keras.saving.register_keras_serializable(package="keras_flash_tests")
class SelfFlow(keras.layers.Layer):
    """Self-attention under the signature of the gated layers."""

    def __init__(self, name=None, dtype=None, trainable=True, **options):
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.flow = FlowAttention(dtype=self.dtype_policy, **options)
        self.options = options
        self.supports_masking = True

    def get_config(self):
        return {**super().get_config(), **self.options}

    def build(self, inputs_shape):
        self.flow.build(inputs_shape, inputs_shape)

    def call(self, inputs, mask=None):
        return self.flow(inputs, inputs, query_mask=mask, value_mask=mask)


@functools.cache
def make(name):
    """The layer of the catalogue, built, with weights of 0.3.

    Tests share it, and with it what JAX has compiled.
    """
    layer_class, options = VARIANTS[name]
    layer_class = SelfFlow if is_flow(name) else layer_class
    layer = layer_class(**options)
    layer.build((None, None, WIDTH))
    helpers.set_weights(layer)
    return layer


def expected(name, layer, x, mask=None, segment_ids=None, weights=None):
    """What the NumPy loops make of the layer's weights, or of others."""
    layer_class, options = VARIANTS[name]
    options = dict(options)
    weights = weights or helpers.weights_of(layer)
    if options.get("attention_activation") is keras.activations.sigmoid:
        options["attention_activation"] = "sigmoid"
    if is_flow(name):
        return reference.flow_attention_layer(
            x, weights, mask, source_mask=mask, **options
        )
    loops = (
        reference.gated_attention_unit
        if layer_class is GatedAttentionUnit
        else reference.mixed_chunk_attention_layer
    )
    return loops(x, weights, mask, segment_ids, **options)
