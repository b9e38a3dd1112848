"""ScaleOffset: several cheap views of one tensor."""

import keras

from keras_flash.layers.sublayers import clone_initializer
from keras_flash.layers.validation import check_positive_int
from keras_flash.ops.scale_offset import scale_offset


@keras.saving.register_keras_serializable(package="keras_flash")
class ScaleOffset(keras.layers.Layer):
    """Several per-feature scalings and shifts of one tensor.

        y_i = x * gamma_i + beta_i

    In FLASH this makes the queries and keys out of one shared base (Hua et al.,
    2022, section 2; the scales start at a standard deviation of 0.02, appendix D).

    Args:
        num_outputs: int, how many outputs. Defaults to `1`.
        gamma_initializer: initializer of the scales. Defaults to
            `RandomNormal(stddev=0.02)`.
        beta_initializer: initializer of the shifts. Defaults to `"zeros"`.

    Call arguments:
        inputs: tensor `(..., d)`.

    Returns:
        Tuple of `num_outputs` tensors `(..., d)`.

    Raises:
        ValueError: where `num_outputs` is not a positive integer, or the last
            axis of `inputs` is unknown.

    Example:

    >>> query, key = ScaleOffset(num_outputs=2)(keras.random.normal((2, 7, 128)))
    """

    def __init__(
        self,
        num_outputs=1,
        gamma_initializer=None,
        beta_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive_int("num_outputs", num_outputs)
        self.num_outputs = num_outputs
        if gamma_initializer is None:
            gamma_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)
        self.beta_initializer = keras.initializers.get(beta_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        if inputs_shape[-1] is None:
            raise ValueError(
                "`inputs` must have a known last axis. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )
        shape = (self.num_outputs, inputs_shape[-1])
        self.gamma = self.add_weight(
            name="gamma",
            shape=shape,
            initializer=clone_initializer(self.gamma_initializer, 0),
            autocast=False,
        )
        self.beta = self.add_weight(
            name="beta",
            shape=shape,
            initializer=clone_initializer(self.beta_initializer, 1),
            autocast=False,
        )

    def call(self, inputs):
        inputs = keras.ops.cast(inputs, self.compute_dtype)
        return tuple(
            scale_offset(inputs, self.gamma[i], self.beta[i])
            for i in range(self.num_outputs)
        )

    def compute_mask(self, inputs, previous_mask=None):
        return (previous_mask,) * self.num_outputs

    def compute_output_shape(self, inputs_shape):
        return (tuple(inputs_shape),) * self.num_outputs

    def get_config(self):
        config = super().get_config()
        config.update(
            num_outputs=self.num_outputs,
            gamma_initializer=keras.initializers.serialize(self.gamma_initializer),
            beta_initializer=keras.initializers.serialize(self.beta_initializer),
        )
        return config
