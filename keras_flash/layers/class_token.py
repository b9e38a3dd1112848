"""ClassToken: a learned token before the first one."""

import keras
from keras import ops

from keras_flash.layers.validation import check_sequence_shape


@keras.saving.register_keras_serializable(package="keras_flash")
class ClassToken(keras.layers.Layer):
    """A learned token before the first one, from which a classifier reads.

    Call arguments:
        inputs: tensor `(b, t, d)`.

    Returns:
        Tensor `(b, t + 1, d)`. A mask of the inputs is not passed on.

    Raises:
        ValueError: where `inputs` has another rank.
    """

    def build(self, inputs_shape):
        check_sequence_shape("inputs", inputs_shape)
        self.embedding = self.add_weight(
            name="embedding",
            shape=(inputs_shape[-1],),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def call(self, inputs):
        token = ops.cast(self.embedding, inputs.dtype)
        token = ops.broadcast_to(token, ops.shape(inputs[:, :1]))
        return ops.concatenate([token, inputs], axis=1)

    def compute_output_shape(self, inputs_shape):
        length = inputs_shape[1]
        return (
            inputs_shape[0],
            None if length is None else length + 1,
            inputs_shape[2],
        )
