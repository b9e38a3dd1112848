"""ScaleNorm: root-mean-square normalisation with one learned scalar."""

import keras

from keras_flash.layers.validation import check_positive
from keras_flash.ops.scale_norm import scale_norm


@keras.saving.register_keras_serializable(package="keras_flash")
class ScaleNorm(keras.layers.Layer):
    """Divides by the root mean square, times one learned scalar.

        y = scale * x / sqrt(mean(x^2) + epsilon)

    Computed in at least float32 under every dtype policy (Hua et al., 2022,
    appendix B.2).

    Args:
        epsilon: float, keeps an all-zero row finite. Defaults to `1e-6`.

    Call arguments:
        inputs: tensor `(..., d)`.

    Returns:
        Tensor of the shape of `inputs`.

    Raises:
        ValueError: where `epsilon` is not a positive number.

    Example:

    >>> y = ScaleNorm()(keras.random.normal((2, 7, 128)))
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        check_positive("epsilon", epsilon)
        self.epsilon = epsilon
        self.supports_masking = True

    def build(self, inputs_shape):
        self.scale = self.add_weight(
            name="scale", shape=(), initializer="ones", autocast=False
        )

    def call(self, inputs):
        inputs = keras.ops.cast(inputs, self.compute_dtype)
        return scale_norm(inputs, self.scale, self.epsilon)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        config = super().get_config()
        config.update(epsilon=self.epsilon)
        return config
