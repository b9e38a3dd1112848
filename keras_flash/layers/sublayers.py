"""What layers made of Dense sublayers share: initializers and quantisation."""

import keras


def clone_initializer(initializer, index):
    """A fresh initializer for the weight number `index` of a layer.

    With an int for a seed, or none, an initializer gives the same values at each
    call: one object, or two with one seed, would start two weights of one shape
    equal. A SeedGenerator gives others each time, and a plain function is the
    user's own; both are used as they are.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    if isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator):
        return initializer
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config["seed"] += index
    return initializer.__class__.from_config(config)


class ProjectionLayer(keras.layers.Layer):
    """A layer with Dense sublayers, which comes back from a file as it was quantised.

    A subclass has `use_bias`, `kernel_initializer` and `bias_initializer`.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._quantization = {}  # serialised, by the name of the sublayer

    def build_dense(self, name, input_dim, units, index):
        """A built Dense sublayer."""
        quantization = self._quantization.get(name)
        config = keras.saving.deserialize_keras_object(quantization)
        dense = keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            kernel_initializer=clone_initializer(self.kernel_initializer, index),
            bias_initializer=clone_initializer(self.bias_initializer, index),
            dtype=self.dtype_policy,
            name=name,
            **({} if config is None else {"quantization_config": config}),
        )
        dense.build((None, None, input_dim))
        return dense

    def get_config(self):
        return {**super().get_config(), **policy_config(self)}

    def get_build_config(self):
        own = {
            sublayer.name: keras.saving.serialize_keras_object(config)
            for sublayer in self._flatten_layers(include_self=False)
            if (config := getattr(sublayer, "quantization_config", None)) is not None
        }
        config = super().get_build_config()
        return {**config, "quantization": own} if own else config

    def build_from_config(self, config):
        self._quantization = config.get("quantization", {})
        super().build_from_config(config)


def project(dense, inputs):
    """`dense(inputs)` of `(b, t, d)` inputs, in rows of tokens `(b t, d)`.

    The same product; but of three axes JAX makes a gradient of the kernel with the
    axes in an order that XLA copies and multiplies at half the speed on CPU. Of a
    length that is unknown, where no exporter finds it again, as they are.
    """
    batch_size, length, dim = inputs.shape
    if not isinstance(length, int):
        return dense(inputs)
    batch_size = batch_size if isinstance(batch_size, int) else -1
    outputs = dense(keras.ops.reshape(inputs, (-1, dim)))
    return keras.ops.reshape(outputs, (batch_size, length, outputs.shape[-1]))


def policy_config(layer):
    """`{"dtype": ...}` with the dtype policy of each sublayer that has its own.

    `quantize` changes the policy of the Dense sublayers; they come back with the
    right weights only if they are made with that policy again.
    """
    default = layer.dtype_policy
    if isinstance(default, keras.dtype_policies.DTypePolicyMap):
        default = default.default_policy
    own = {
        sublayer.path: sublayer.dtype_policy
        for sublayer in layer._flatten_layers(include_self=False)
        if not isinstance(sublayer.dtype_policy, keras.dtype_policies.DTypePolicyMap)
        and sublayer.dtype_policy != default
    }
    if not own:
        return {}
    policy = keras.dtype_policies.DTypePolicyMap(default, own)
    return {"dtype": keras.dtype_policies.serialize(policy)}
