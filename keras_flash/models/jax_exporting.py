"""What the exporters need to be told on JAX."""

import keras


class Weights(keras.layers.Layer):
    """What a model computes with.

    Not the state of its random numbers: inference leaves it alone, a server must not
    write to it from several threads, and LiteRT cannot hold it.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.built = True

    @property
    def trainable_variables(self):
        return self.model.weights

    @property
    def non_trainable_variables(self):
        return []


def shapes(signature):
    """By input, its shape with names for unknown sizes: one for all of an axis."""
    return {
        name: tuple(f"axis_{i}" if n is None else n for i, n in enumerate(shape))
        for name, (shape, _) in signature.specs.items()
    }


def polymorphic_shapes(signature):
    """As `jax2tf.convert` takes them, for a function of one dict."""
    return [
        {
            name: f"({', '.join(map(str, shape))})"
            for name, shape in shapes(signature).items()
        }
    ]


def write_onnx(signature, path):
    """An ONNX file with one signature."""
    import jax
    import jax2onnx

    names = list(signature.specs)
    given = {
        name: jax.ShapeDtypeStruct(shape, signature.specs[name][1])
        for name, shape in shapes(signature).items()
    }
    some = {
        name: jax.ShapeDtypeStruct([2 if n is None else n for n in shape], dtype)
        for name, (shape, dtype) in signature.specs.items()
    }
    found = list(jax.eval_shape(signature.function, some))

    def flat(*tensors):
        outputs = signature.function(dict(zip(names, tensors)))
        return [outputs[name] for name in found]

    jax2onnx.to_onnx(
        flat,
        list(given.values()),
        input_names=names,
        output_names=[signature.next_name(name) for name in found],
        return_mode="file",
        output_path=str(path),
    )
