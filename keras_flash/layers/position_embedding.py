"""PositionEmbedding: a learned vector for each position."""

import keras
from keras import ops

from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_sequence_shape


@keras.saving.register_keras_serializable(package="keras_flash")
class PositionEmbedding(keras.layers.Layer):
    """A learned vector for each position, to be added to a sequence.

    Args:
        sequence_length: int, the most positions.
        embeddings_initializer: of the vectors. Defaults to a normal distribution of
            stddev 0.02.

    Call arguments:
        inputs: tensor `(b, t, d)`, of which the shape counts; t is at most
            `sequence_length`.

    Returns:
        Tensor `(b, t, d)`.

    Raises:
        ValueError: where `inputs` has another rank or more positions.

    Example:

    >>> x = keras.random.normal((2, 7, 64))
    >>> y = x + PositionEmbedding(sequence_length=10)(x)
    """

    def __init__(self, sequence_length, embeddings_initializer=None, **kwargs):
        super().__init__(**kwargs)
        check_positive_int("sequence_length", sequence_length)
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.sequence_length = sequence_length
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        self._check_shape(inputs_shape)
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.sequence_length, inputs_shape[-1]),
            initializer=self.embeddings_initializer,
        )

    def call(self, inputs):
        self._check_shape(inputs.shape)
        embeddings = self.embeddings[: ops.shape(inputs)[1]]
        return ops.broadcast_to(
            ops.cast(embeddings, self.compute_dtype), ops.shape(inputs)
        )

    def _check_shape(self, shape):
        check_sequence_shape("inputs", shape)
        if shape[1] is not None and shape[1] > self.sequence_length:
            raise ValueError(
                f"`inputs` must have at most {self.sequence_length} positions, the "
                f"`sequence_length`. Received: inputs.shape={tuple(shape)}"
            )

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        config = super().get_config()
        config.update(
            sequence_length=self.sequence_length,
            embeddings_initializer=keras.initializers.serialize(
                self.embeddings_initializer
            ),
        )
        return config
