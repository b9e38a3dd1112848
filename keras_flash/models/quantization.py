"""How a quantized model comes back from its configuration."""

import keras


class KeepsQuantization:
    """A mixin for models whose `from_config` makes them anew by their constructor.

    `quantize` changes a model layer by layer, each with a mode and options. The
    configuration holds both, and a model that is made of it is quantized in the same
    way before its weights are loaded.
    """

    def get_config(self):
        return add_quantization(super().get_config(), self)

    @classmethod
    def from_config(cls, config):
        config, quantization = split_quantization(config)
        return quantize_again(super().from_config(config), quantization)


def add_quantization(config, model):
    """The config with how each layer of the model was quantized, by its path."""
    layers = {
        layer.path: {
            "mode": layer.quantization_mode,
            "options": keras.saving.serialize_keras_object(layer.quantization_config),
        }
        for layer in model._flatten_layers(include_self=False)
        if getattr(layer, "quantization_config", None) is not None
    }
    if not layers:
        return config
    if "dtype" in config:  # not with the policies that `quantize` made
        config["dtype"] = keras.dtype_policies.serialize(model.dtype_policy)
    return {**config, "quantization": layers}


def split_quantization(config):
    config = dict(config)
    return config, config.pop("quantization", {})


def quantize_again(model, quantization):
    for layer in model._flatten_layers(include_self=False):
        found = quantization.get(layer.path)
        if found is not None and layer.quantization_mode is None:
            options = keras.saving.deserialize_keras_object(found["options"])
            layer.quantize(found["mode"], config=options)
    return model
