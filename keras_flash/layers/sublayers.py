"""What a layer made of Dense sublayers needs once: initializers and quantisation."""

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


def build_dense(layer, name, input_dim, units, index):
    """A built Dense sublayer with the bias setting and initializers of `layer`."""
    dense = keras.layers.Dense(
        units,
        use_bias=layer.use_bias,
        kernel_initializer=clone_initializer(layer.kernel_initializer, index),
        bias_initializer=clone_initializer(layer.bias_initializer, index),
        dtype=layer.dtype_policy,
        name=name,
    )
    dense.build((None, None, input_dim))
    return dense


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
