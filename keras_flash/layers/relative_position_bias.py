"""RelativePositionBias: a learned bias on attention scores."""

import keras
from keras import ops

from keras_flash.layers.sublayers import clone_initializer
from keras_flash.layers.validation import check_bool
from keras_flash.layers.validation import check_choice
from keras_flash.layers.validation import check_positive_int
from keras_flash.layers.validation import check_unset
from keras_flash.ops.numerics import at_least_float32
from keras_flash.ops.relative_position_bias import distances_between
from keras_flash.ops.relative_position_bias import rotary_bias
from keras_flash.ops.relative_position_bias import t5_bias
from keras_flash.ops.relative_position_bias import toeplitz_bias
from keras_flash.ops.relative_position_bias import toeplitz_matrix

KINDS = ("auto", "toeplitz", "rotary", "t5")
ROTARY_DIM = 128  # features of the two rotary vectors (FLASH, app. D, code 4)
AUTO_LENGTH = 512  # the paper's rule: toeplitz below, rotary from here on


@keras.saving.register_keras_serializable(package="keras_flash")
class RelativePositionBias(keras.layers.Layer):
    """Adds a learned bias that depends on key position - query position.

        y_ts = scores_ts + b_(s - t)

    t query position, s key position. `"toeplitz"` and `"rotary"` are those of Hua et
    al., 2022 (appendix D, code 4), `"t5"` that of Raffel et al., 2020 (section 2.1).

    Args:
        kind: `"toeplitz"`: one weight a distance; beyond `max_length` its end
            weight holds. `"rotary"`: two vectors of 128 features, rotated by
            the positions and dotted; any length. `"t5"`: `num_buckets` weights,
            one a distance while short, then log-spaced up to `max_distance`.
            `"auto"`, the default: `"toeplitz"` where `max_length` is below 512,
            else `"rotary"`.
        max_length: int, the longest distance of `"toeplitz"`, plus 1. Defaults to
            `512`.
        num_buckets: int, of `"t5"`. Defaults to `32`.
        max_distance: int, of `"t5"`. Defaults to `128`.
        bidirectional: bool, whether keys after the query have weights of their
            own; where not, they get the bias of distance 0. Defaults to `True`.
        initializer: initializer of the weights. Defaults to
            `RandomUniform(0.0, 0.04)`, with which every kind starts positive
            (`"rotary"` as far as a thousand tokens): squared relu passes no
            gradient below zero, so a distance that starts there would stay asleep.

    Call arguments:
        scores: tensor `(..., t, s)`; queries and keys both start at position 0.

    Returns:
        Tensor of the shape of `scores`.

    Raises:
        ValueError: for a `kind` not listed, a count that is not a positive
            integer, fewer than 4 buckets, a `max_distance` that the exact buckets
            cover already, either of these two with another kind than `"t5"`, or a
            `max_length` with `"rotary"` or `"t5"`.

    Example:

    >>> layer = RelativePositionBias("t5", bidirectional=False)
    >>> scores = layer(keras.random.normal((2, 9, 9)))
    >>> bias = layer.bias(keras.ops.arange(40, 45), keras.ops.arange(45))  # (5, 45)
    """

    def __init__(
        self,
        kind="auto",
        max_length=512,
        num_buckets=32,
        max_distance=128,
        bidirectional=True,
        initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice("kind", kind, KINDS)
        check_positive_int("max_length", max_length)
        check_positive_int("num_buckets", num_buckets)
        check_positive_int("max_distance", max_distance)
        check_bool("bidirectional", bidirectional)
        if kind in ("rotary", "t5"):
            check_unset("max_length", max_length, 512, f'with kind="{kind}"')
        if self._resolve(kind, max_length) != "t5":
            reason = f'with kind="{kind}"'
            check_unset("num_buckets", num_buckets, 32, reason)
            check_unset("max_distance", max_distance, 128, reason)
        if num_buckets < 4 or (bidirectional and num_buckets % 2):
            raise ValueError(
                "`num_buckets` must be at least 4, and even where bidirectional. "
                f"Received: num_buckets={num_buckets}"
            )
        exact = num_buckets // (4 if bidirectional else 2)
        if max_distance <= exact:
            raise ValueError(
                f"`max_distance` must be more than the {exact} distances that have "
                f"a bucket each. Received: max_distance={max_distance}"
            )
        self.kind = kind
        self.max_length = max_length
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        if initializer is None:
            initializer = keras.initializers.RandomUniform(0.0, 0.04)
        self.initializer = keras.initializers.get(initializer)
        self.supports_masking = True

    @property
    def resolved_kind(self):
        """`kind` with "auto" replaced by what it stands for."""
        return self._resolve(self.kind, self.max_length)

    @staticmethod
    def _resolve(kind, max_length):
        if kind != "auto":
            return kind
        return "toeplitz" if max_length < AUTO_LENGTH else "rotary"

    def build(self, scores_shape=None):
        if self.resolved_kind == "rotary":
            self.query_vector = self._add_vector("query_vector", (ROTARY_DIM,), 0)
            self.key_vector = self._add_vector("key_vector", (ROTARY_DIM,), 1)
            return
        size = self.num_buckets
        if self.resolved_kind == "toeplitz":
            size = 2 * self.max_length - 1 if self.bidirectional else self.max_length
        self.table = self._add_vector("table", (size, 1), 0)

    def _add_vector(self, name, shape, index):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=clone_initializer(self.initializer, index),
            autocast=False,  # a bias is small beside the scores it is added to
        )

    def by_distance(self, distances):
        """The bias of each distance.

        Args:
            distances: int tensor, key position - query position.

        Returns:
            Float tensor of the shape of `distances`.
        """
        if not self.built:
            raise ValueError(
                "The layer must be built before its bias is asked for. "
                f"Received: layer={self.name!r}, not built"
            )
        distances = ops.cast(distances, "int32")
        if not self.bidirectional:
            distances = ops.minimum(distances, 0)
        if self.resolved_kind == "toeplitz":
            return toeplitz_bias(
                ops.convert_to_tensor(self.table), distances, self.bidirectional
            )
        if self.resolved_kind == "t5":
            return t5_bias(
                ops.convert_to_tensor(self.table),
                distances,
                self.max_distance,
                self.bidirectional,
            )
        return rotary_bias(
            ops.convert_to_tensor(self.query_vector),
            ops.convert_to_tensor(self.key_vector),
            distances,
        )

    def bias(self, query_positions, key_positions):
        """The bias between any positions, for tiled and streaming code.

        Args:
            query_positions: int tensor `(t,)`.
            key_positions: int tensor `(s,)`.

        Returns:
            Float tensor `(t, s)`.

        Raises:
            ValueError: for positions of another rank, or where the layer is not
                built yet.
        """
        for name, positions in (
            ("query_positions", query_positions),
            ("key_positions", key_positions),
        ):
            if len(positions.shape) != 1:
                raise ValueError(
                    f"`{name}` must be one axis of positions. "
                    f"Received: {name}.shape={tuple(positions.shape)}"
                )
        query_positions = ops.cast(query_positions, "int32")
        key_positions = ops.cast(key_positions, "int32")
        return self.by_distance(
            ops.expand_dims(key_positions, 0) - ops.expand_dims(query_positions, 1)
        )

    def call(self, scores):
        if len(scores.shape) < 2:
            raise ValueError(
                "`scores` must have shape (..., queries, keys). "
                f"Received: scores.shape={tuple(scores.shape)}"
            )
        scores = ops.cast(scores, self.compute_dtype)
        num_queries, num_keys = ops.shape(scores)[-2:]
        values = self.by_distance(distances_between(num_queries, num_keys))
        bias = toeplitz_matrix(values, num_queries, num_keys)
        return ops.cast(at_least_float32(scores) + bias, scores.dtype)

    def compute_output_shape(self, scores_shape):
        return scores_shape

    def get_config(self):
        config = super().get_config()
        config.update(
            kind=self.kind,
            max_length=self.max_length,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
            initializer=keras.initializers.serialize(self.initializer),
        )
        return config
