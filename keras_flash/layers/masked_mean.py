"""MaskedMean: the mean over the real tokens of a sequence."""

import keras
from keras import ops

from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.segments import keep_where


@keras.saving.register_keras_serializable(package="keras_flash")
class MaskedMean(keras.layers.Layer):
    """The mean over positions, summed in at least float32; 0 where all are masked.

    Call arguments:
        inputs: tensor `(b, t, d)`.
        mask: `(b, t)`, true = real token.

    Returns:
        Tensor `(b, d)`.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, mask=None):
        x = at_least_float32(inputs)
        if mask is None:
            return ops.cast(ops.mean(x, axis=1), self.compute_dtype)
        mask = ops.cast(mask, "bool")
        count = ops.sum(ops.cast(mask, x.dtype), axis=1, keepdims=True)
        total = ops.sum(keep_where(mask, x), axis=1)
        return ops.cast(total / ops.maximum(count, 1.0), self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, inputs_shape):
        return (inputs_shape[0], inputs_shape[2])
