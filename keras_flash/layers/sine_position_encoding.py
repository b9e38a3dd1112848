"""SinePositionEncoding: sines and cosines of the position, exact at any length."""

import keras
from keras import ops

from keras_flash.layers.streaming_layer import StreamingLayer
from keras_flash.layers.validation import check_sequence_shape
from keras_flash.ops.rotary import rotary_cos_sin


@keras.saving.register_keras_serializable(package="keras_flash")
class SinePositionEncoding(StreamingLayer):
    """Sinusoidal position encoding, to be added to a sequence.

        y_t = [sin(t 10000^(-2i/d)), cos(t 10000^(-2i/d))]    i = 0 ... d/2 - 1

    Sines stand before cosines. Angles are exact to 4e-6 up to a million positions
    under every dtype policy (Vaswani et al., 2017, section 3.5).

    Streaming: the state is the position.

    Call arguments:
        inputs: tensor `(b, t, d)`, of which the shape counts; d is even.

    Returns:
        Tensor `(b, t, d)`.

    Raises:
        ValueError: where `inputs` has another rank or an odd last axis.

    Example:

    >>> x = keras.random.normal((2, 7, 64))
    >>> y = x + SinePositionEncoding()(x)
    """

    causal = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, inputs_shape):
        check_sequence_shape("inputs", inputs_shape)
        if inputs_shape[-1] % 2:
            raise ValueError(
                "`inputs` must have an even number of features. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )

    def call(self, inputs):
        positions = ops.arange(0, ops.shape(inputs)[1], dtype="int32")
        return self._encode(inputs, ops.expand_dims(positions, 0))

    def _stream(self, inputs, state, length):
        places = ops.arange(0, ops.shape(inputs)[1], dtype="int32")
        positions = ops.expand_dims(state["position"], 1) + places
        return self._encode(inputs, positions), {"position": state["position"] + length}

    def _state_spec(self):
        return {"position": ((), "int32")}

    def _encode(self, inputs, positions):
        cos, sin = rotary_cos_sin(positions, inputs.shape[-1])
        encoding = ops.cast(ops.concatenate([sin, cos], axis=-1), self.compute_dtype)
        return ops.broadcast_to(encoding, ops.shape(inputs))

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
