"""FlowformerDecisionModel: actions from returns, states and earlier actions."""

import keras
import numpy as np
from keras import ops

from keras_flash.layers.validation import check_ids
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_rate
from keras_flash.models.blocks import check_attention
from keras_flash.models.blocks import make_attention
from keras_flash.models.blocks import residual_block
from keras_flash.models.checked_model import CheckedModel
from keras_flash.models.checked_model import check_finite
from keras_flash.models.checked_model import check_inputs
from keras_flash.models.checked_model import check_mask
from keras_flash.models.checked_model import check_range
from keras_flash.models.checked_model import check_shape
from keras_flash.models.streaming_model import StreamingModel
from keras_flash.ops.segments import keep_where

INPUTS = ("returns", "states", "actions", "timesteps", "padding_mask")


@keras.saving.register_keras_serializable(package="keras_flash")
class FlowformerDecisionModel(CheckedModel):
    """Decision Transformer with causal Flow-Attention (Wu et al., 2022, section 4.5).

    Each step of a trajectory is three tokens: the return still to come, the state, the
    action. A dense layer of their own and a vector for the time step embed them;
    pre-norm blocks follow, with relu in the feed-forward layers; the action is read
    from the state's token, which sees no later one (Chen et al., 2021, section 3).

    At play, `act` continues from a state of constant size.

    Args:
        state_dim: int, features of a state.
        num_actions: int, where actions are one of so many.
        action_dim: int, where actions are vectors in [-1, 1]. Either this or
            `num_actions`.
        max_timesteps: int, the most steps of an episode. Defaults to `1000`.
        num_layers: int. Defaults to `3`.
        num_heads: int, of Flow-Attention. Defaults to `4`, and with FLASH, which has
            one head, it must be `None`.
        hidden_dim: int. Defaults to `256`.
        intermediate_dim: int. Defaults to `1024`.
        attention: `"flow_attention"` or `"mixed_chunk_attention"` (FLASH, with an
            expansion factor of 1). Defaults to `"flow_attention"`.
        attention_options: dict of more arguments of the attention layers. Defaults to
            none.
        dropout: float in [0, 1). Defaults to `0.1`.
        dtype: dtype policy of the model. Defaults to the global one.

    Call arguments:
        inputs: dict of `"returns"`, `(b, t)`, the sum of rewards from each step on, in
            units of about 1; `"states"`, `(b, t, state_dim)`; `"actions"`, int
            `(b, t)` or `(b, t, action_dim)`; `"timesteps"`, int `(b, t)`;
            `"padding_mask"`, `(b, t)`, 1 = real step.

    Returns:
        For each step logits `(b, t, num_actions)`, or actions `(b, t, action_dim)`.
        In `fit`, `sample_weight=padding_mask` leaves out steps that are none; their
        targets must be actions all the same.

    Raises:
        ValueError: for an argument outside what is listed here; in `fit`, for arrays
            of other shapes, for real steps with values that are not finite or with
            actions or time steps out of range, and for targets that are no actions.

    Example:

    >>> model = FlowformerDecisionModel(state_dim=4, num_actions=2)
    >>> state = model.get_initial_state(batch_size=1)
    >>> logits, state = model.act([1.0], np.zeros((1, 4)), [0], state)
    >>> logits, state = model.act([0.9], np.zeros((1, 4)), [1], state, actions=[1])
    """

    def __init__(
        self,
        state_dim,
        num_actions=None,
        action_dim=None,
        max_timesteps=1000,
        num_layers=3,
        num_heads=None,
        hidden_dim=256,
        intermediate_dim=1024,
        attention="flow_attention",
        attention_options=None,
        dropout=0.1,
        dtype=None,
        **kwargs,
    ):
        check_positive_int("state_dim", state_dim)
        if (num_actions is None) == (action_dim is None):
            raise ValueError(
                "Either `num_actions` or `action_dim` must be given. Received: "
                f"num_actions={num_actions}, action_dim={action_dim}"
            )
        if num_actions is not None:
            check_positive_int("num_actions", num_actions)
        else:
            check_positive_int("action_dim", action_dim)
        check_positive_int("max_timesteps", max_timesteps)
        check_positive_int("num_layers", num_layers)
        check_positive_int("hidden_dim", hidden_dim)
        check_positive_int("intermediate_dim", intermediate_dim)
        attention_options = {} if attention_options is None else attention_options
        if num_heads is None and attention == "flow_attention":
            num_heads = 4
        check_attention(attention, attention_options, num_heads, hidden_dim)
        check_rate("dropout", dropout)

        # === Layers ===
        def dense(units, name, activation=None):
            return keras.layers.Dense(
                units, activation=activation, dtype=dtype, name=name
            )

        def embedding(size, name):
            return keras.layers.Embedding(size, hidden_dim, dtype=dtype, name=name)

        return_embedding = dense(hidden_dim, "return_embedding")
        state_embedding = dense(hidden_dim, "state_embedding")
        if num_actions is not None:
            action_embedding = embedding(num_actions, "action_embedding")
            output_dense = dense(num_actions, "logits")
        else:
            action_embedding = dense(hidden_dim, "action_embedding")
            output_dense = dense(action_dim, "output_actions", "tanh")
        timestep_embedding = embedding(max_timesteps, "timestep_embedding")
        tokens = keras.Input((None, hidden_dim), name="tokens")
        mask = keras.Input((None,), dtype="bool", name="mask")
        x = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=dtype, name="embedding_norm"
        )(tokens)
        x = keras.layers.Dropout(dropout, dtype=dtype, name="embedding_dropout")(x)
        for i in range(num_layers):
            layer = make_attention(
                attention,
                attention_options,
                num_heads,
                hidden_dim,
                causal=True,
                dropout=dropout,
                dtype=dtype,
                name=f"block_{i}_attention",
            )
            x = residual_block(
                x,
                mask,
                layer,
                intermediate_dim,
                activation="relu",
                dropout=dropout,
                dtype=dtype,
                name=f"block_{i}",
            )
        x = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=dtype, name="final_norm"
        )(x)
        trunk = keras.Model([tokens, mask], x, name="trunk")

        # === Functional Model ===
        returns = keras.Input((None,), name="returns")
        states = keras.Input((None, state_dim), name="states")
        timesteps = keras.Input((None,), dtype="int32", name="timesteps")
        padding_mask = keras.Input((None,), dtype="int32", name="padding_mask")
        if num_actions is not None:
            actions = keras.Input((None,), dtype="int32", name="actions")
        else:
            actions = keras.Input((None, action_dim), name="actions")
        # What a masked step holds enters no gradient.
        is_real = ops.cast(padding_mask, "bool")
        if num_actions is not None:
            taken = action_embedding(ops.where(is_real, actions, 0))
        else:
            taken = action_embedding(keep_where(is_real, actions))
        time = timestep_embedding(ops.where(is_real, timesteps, 0))
        steps = ops.stack(
            [
                return_embedding(keep_where(is_real, ops.expand_dims(returns, -1)))
                + time,
                state_embedding(keep_where(is_real, states)) + time,
                taken + time,
            ],
            axis=2,
        )  # (b, t, 3, d)
        x = keras.layers.Reshape((-1, hidden_dim), dtype=dtype, name="to_tokens")(steps)
        x = trunk([x, ops.repeat(is_real, 3, axis=1)])
        x = keras.layers.Reshape((-1, 3, hidden_dim), dtype=dtype, name="to_steps")(x)
        super().__init__(
            inputs={
                "returns": returns,
                "states": states,
                "actions": actions,
                "timesteps": timesteps,
                "padding_mask": padding_mask,
            },
            outputs=output_dense(x[:, :, 1]),
            dtype=dtype,
            **kwargs,
        )
        self._embeddings = {
            "returns": return_embedding,
            "states": state_embedding,
            "actions": action_embedding,
            "timesteps": timestep_embedding,
        }
        self._output_dense = output_dense
        self._streaming = StreamingModel(trunk)

        # === Config ===
        self.state_dim = state_dim
        self.num_actions = num_actions
        self.action_dim = action_dim
        self.max_timesteps = max_timesteps
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.attention = attention
        self.attention_options = attention_options
        self.dropout = dropout

    def get_initial_state(self, batch_size):
        """The state before the first step; see `StreamingModel`."""
        return self._streaming.get_initial_state(batch_size)

    def act(self, returns, states, timesteps, state, actions=None):
        """The next action of each of b episodes.

        Args:
            returns: `(b,)`, the returns still to come.
            states: `(b, state_dim)`, what is observed.
            timesteps: int `(b,)`.
            state: what `get_initial_state` or the previous `act` gave.
            actions: int `(b,)` or `(b, action_dim)`, the actions taken in the step
                before; none in the first one.

        Returns:
            Logits `(b, num_actions)` or actions `(b, action_dim)`, and the new state.

        Raises:
            ValueError: for other shapes, and for time steps and actions out of range.
        """
        embed = self._embeddings
        returns = ops.convert_to_tensor(returns, dtype="float32")
        states = ops.convert_to_tensor(states, dtype="float32")
        timesteps = ops.convert_to_tensor(timesteps, dtype="int32")
        batch_size = len(returns)
        self._check_step("states", states, (batch_size, self.state_dim))
        self._check_step("timesteps", timesteps, (batch_size,), self.max_timesteps)
        if actions is not None:
            shape = (batch_size, *([self.action_dim] if self.action_dim else []))
            actions = ops.convert_to_tensor(actions)
            self._check_step("actions", actions, shape, self.num_actions)
            # The step before has a time too.
            self._check_step("timesteps - 1", timesteps - 1, (batch_size,), 2**31)
        time = embed["timesteps"](timesteps)
        tokens = [
            embed["returns"](ops.expand_dims(returns, -1)) + time,
            embed["states"](states) + time,
        ]
        if actions is not None:
            dtype = "float32" if self.num_actions is None else "int32"
            actions = ops.convert_to_tensor(actions, dtype=dtype)
            before = embed["timesteps"](timesteps - 1)
            tokens.insert(0, embed["actions"](actions) + before)
        tokens = ops.stack(tokens, axis=1)
        mask = ops.ones_like(tokens[:, :, 0], dtype="bool")
        hidden, state = self._streaming.stream([tokens, mask], state)
        return self._output_dense(hidden[:, -1]), state

    def _check_step(self, name, tensor, shape, size=None):
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"`{name}` must have shape {shape}. "
                f"Received: {name}.shape={tuple(tensor.shape)}"
            )
        if size is not None:
            check_ids(name, tensor, size)

    def check_data(self, x, y):
        check_inputs(x, INPUTS)
        shape = x["returns"].shape
        check_shape("returns", x["returns"], (None, None))
        check_shape("states", x["states"], (*shape, self.state_dim))
        check_shape("timesteps", x["timesteps"], shape)
        check_mask("padding_mask", x["padding_mask"], shape)
        real = x["padding_mask"].astype("bool")
        check_ids("timesteps", x["timesteps"][real], self.max_timesteps)
        check_finite("returns", np.where(real, x["returns"], 0))
        check_finite("states", np.where(real[..., None], x["states"], 0))
        if y is None or len(y) != shape[0]:
            raise ValueError(
                f"`y` must hold actions for each of the {shape[0]} sequences. "
                f"Received: y={'None' if y is None else f'{len(y)} sequences'}"
            )
        # A loss is taken of every step before the weights, so `y` is looked at whole.
        everywhere = np.ones_like(real)
        for name, actions, counts in (
            ("actions", x["actions"], real),
            ("y", y, everywhere),
        ):
            if self.num_actions is None:
                check_shape(name, actions, (*shape, self.action_dim))
                check_range(name, np.where(counts[..., None], actions, 0), -1, 1)
            else:
                check_shape(name, actions, shape)
                check_ids(name, actions[counts], self.num_actions)
