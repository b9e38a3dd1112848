"""What the layers that stream share: their state, and the checks of it."""

import keras
from keras import backend
from keras import ops

from keras_flash.layers.validation import check_length
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_sequence_shape
from keras_flash.layers.validation import check_state


class StreamingLayer(keras.layers.Layer):
    """A layer whose causal form continues from a state.

    A subclass gives `_state_spec()`, shape without the batch and dtype of each leaf
    by name, and `_stream(inputs, state, length)`.
    """

    def get_initial_state(self, batch_size):
        """The state before the first token.

        Args:
            batch_size: int, or a scalar int tensor.

        Returns:
            Dict of zeros, each with the batch as its first axis. Sums are in
            float32 and caches in the compute dtype.

        Raises:
            ValueError: where the layer is not built or not causal, or `batch_size`
                is not positive.
        """
        return self._make_state(batch_size)

    def stream(self, inputs, state, length=None):
        """Continues a sequence by a piece of any length.

        However a sequence is cut into pieces, the outputs equal those of one call.
        Dropout is not active, and no gradient flows back through the state.

        Args:
            inputs: tensor `(b, t, d)`, the next t tokens.
            state: what `get_initial_state` or the previous `stream` gave.
            length: int or scalar int tensor from 0 to t: only so many tokens are
                consumed. Outputs after them are finite and otherwise unspecified.
                Defaults to all.

        Returns:
            Tensor `(b, t, d)`, and the new state, of the same shapes and dtypes.
            The given state is left as it was.

        Raises:
            ValueError: where the layer is not built or not causal, for a `state`
                of another layer, batch size or dtype policy, and for a `length`
                that is out of range or no integer.
        """
        inputs = ops.convert_to_tensor(inputs, dtype=self.compute_dtype)
        check_sequence_shape("inputs", inputs.shape)
        self.check_streams()
        state = check_state(state, self._state_spec_of(state), inputs.shape[0])
        length = check_length(length, inputs)
        outputs, after = self._stream(inputs, state, length)
        # In one order: torch.compile would take another for another program.
        return outputs, {name: ops.stop_gradient(after[name]) for name in state}

    def _make_state(self, batch_size, **sizes):
        self.check_streams()
        if not ops.is_tensor(batch_size):
            check_positive_int("batch_size", batch_size)
        return {
            name: ops.zeros((batch_size, *shape), dtype)
            for name, (shape, dtype) in self._state_spec(**sizes).items()
        }

    def _state_spec_of(self, state):
        return self._state_spec()

    @property
    def _sum_dtype(self):
        return backend.result_type(self.compute_dtype, "float32")

    def check_streams(self):
        """Raises a ValueError where the layer is not built or not causal."""
        if not self.built:
            raise ValueError(
                "The layer must be built before it can stream: call it once, or its "
                f"`build`. Received: layer={self.name!r}, not built"
            )
        if not self.causal:
            raise ValueError(
                "`causal` must be True for a layer to stream. "
                f"Received: layer={self.name!r}, causal=False"
            )
