"""LayerScale: a learned factor for each feature, small at the start."""

import keras
from keras import ops

from keras_flash.layers.validation import check_positive


@keras.saving.register_keras_serializable(package="keras_flash")
class LayerScale(keras.layers.Layer):
    """`x * gamma`, with a weight for each feature (Touvron et al., 2021, section 2).

    Args:
        initial_value: float, where each weight starts. Defaults to `1e-5`.

    Call arguments:
        inputs: tensor `(..., d)`.

    Returns:
        Tensor `(..., d)`.
    """

    tokenwise = True

    def __init__(self, initial_value=1e-5, **kwargs):
        super().__init__(**kwargs)
        check_positive("initial_value", initial_value)
        self.initial_value = initial_value
        self.supports_masking = True

    def build(self, inputs_shape):
        self.gamma = self.add_weight(
            name="gamma",
            shape=(inputs_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
        )

    def call(self, inputs):
        return inputs * ops.cast(self.gamma, inputs.dtype)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        config = super().get_config()
        config.update(initial_value=self.initial_value)
        return config
