"""Calling layers and taking gradients in one way on every backend."""

import keras
import numpy as np

BACKEND = keras.backend.backend()


def error(result, expected):
    """`max |a - b| / max |b|` over a tensor."""
    result, expected = to_numpy(result), np.asarray(expected, "float64")
    assert result.shape == expected.shape
    assert np.isfinite(result).all()
    size = max(np.abs(expected).max(initial=0), 1e-30)
    return np.abs(result - expected).max(initial=0) / size


def to_numpy(x):
    return np.asarray(keras.ops.convert_to_numpy(x), "float64")


def normal(*shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(size=shape, scale=scale).astype("float32")


def set_weights(layer, seed=2, scale=0.3):
    """Normal values for every weight: start values of 0.02 hide faults."""
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        if "seed" not in weight.path:
            weight.assign(generator.normal(size=weight.shape, scale=scale))


def weights_of(layer):
    """float64 weights by name inside the layer."""
    named = {}
    for weight in layer.trainable_variables:
        parts = weight.path.split("/")
        named["/".join(parts[-2:] if len(parts) > 1 else parts)] = to_numpy(weight)
    return named


def run(layer, *args, **kwargs):
    """Outputs in inference, op by op, as NumPy."""
    if BACKEND == "torch":
        import torch

        with torch.no_grad():
            outputs = layer(*args, **kwargs)
    else:
        outputs = layer(*args, **kwargs)
    return keras.tree.map_structure(to_numpy, outputs)


def gradients(layer, cotangent, inputs, **kwargs):
    """Gradients of `sum(cotangent * layer(inputs))`.

    Returns:
        The gradient for the inputs and a list of those for the weights.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        x = tf.convert_to_tensor(inputs)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, **kwargs)
            value = tf.reduce_sum(tf.cast(y, "float32") * cotangent)
        found = tape.gradient(value, [x, *(w.value for w in layer.trainable_variables)])
    elif BACKEND == "jax":
        import jax

        def value(x, trainable):
            state = [v.value for v in layer.non_trainable_variables]
            y, _ = layer.stateless_call(trainable, state, x, **kwargs)
            return (y.astype("float32") * cotangent).sum()

        trainable = [v.value for v in layer.trainable_variables]
        pair = jax.grad(value, argnums=(0, 1))(jax.numpy.asarray(inputs), trainable)
        found = [pair[0], *pair[1]]
    else:
        import torch

        x = torch.tensor(inputs, requires_grad=True)
        y = layer(x, **kwargs)
        value = (y.float() * torch.tensor(cotangent)).sum()
        parameters = [w.value for w in layer.trainable_variables]
        found = torch.autograd.grad(value, [x, *parameters])
    arrays = [to_numpy(gradient) for gradient in found]
    return arrays[0], arrays[1:]
