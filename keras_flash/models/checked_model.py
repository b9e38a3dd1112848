"""CheckedModel: what the models that need no extra share."""

import inspect

import keras
import numpy as np

from keras_flash.layers.validation import check_ids
from keras_flash.layers.validation import check_positive_int
from keras_flash.models.quantization import add_quantization
from keras_flash.models.quantization import quantize_again
from keras_flash.models.quantization import split_quantization


class CheckedModel(keras.Model):
    """A functional model that is made anew from its arguments, and checks its data.

    A subclass keeps each argument of its constructor as an attribute, and gives
    `check_data(x, y)`, which raises a ValueError for arrays that it cannot learn from.
    """

    def __init__(self, *args, dtype=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.dtype_policy = keras.dtype_policies.get(dtype)

    def fit(self, x=None, y=None, *args, validation_data=None, **kwargs):
        """As `keras.Model.fit`. Data sets and generators pass unread.

        Raises:
            ValueError: for arrays of other shapes, that are empty or not finite, for
                sequences without a real token, and for labels that are none.
        """
        self._check(x, y)
        if isinstance(validation_data, (tuple, list)) and len(validation_data) > 1:
            self._check(*validation_data[:2])
        return super().fit(x, y, *args, validation_data=validation_data, **kwargs)

    def _check(self, x, y):
        leaves = [leaf for leaf in keras.tree.flatten((x, y)) if leaf is not None]
        if leaves and all(_is_array(leaf) for leaf in leaves):
            self.check_data(*keras.tree.map_structure(_to_numpy, (x, y)))

    def get_config(self):
        names = inspect.signature(type(self).__init__).parameters
        names = [name for name in names if name not in ("self", "dtype", "kwargs")]
        config = {
            "name": self.name,
            "trainable": self.trainable,
            **{name: getattr(self, name) for name in names},
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }
        return add_quantization(config, self)

    @classmethod
    def from_config(cls, config):
        config, quantization = split_quantization(config)
        config["dtype"] = keras.dtype_policies.deserialize(config["dtype"])
        return quantize_again(cls(**config), quantization)


def _is_array(leaf):
    """Whether Keras takes it as one: tensors of any backend and data frames too."""
    return hasattr(leaf, "__array__")


def _to_numpy(leaf):
    if leaf is None:
        return None
    is_ours = keras.ops.is_tensor(leaf)
    return keras.ops.convert_to_numpy(leaf) if is_ours else np.asarray(leaf)


def check_inputs(x, names):
    """A dict of arrays of one number of samples, each with one or more."""
    if not isinstance(x, dict) or set(x) != set(names):
        given = sorted(x) if isinstance(x, dict) else type(x).__name__
        raise ValueError(
            f"`x` must be a dict of {', '.join(names)}. Received: x={given}"
        )
    counts = {name: len(array) for name, array in x.items()}
    if len(set(counts.values())) > 1 or not min(counts.values()):
        raise ValueError(
            "`x` must hold the same number of samples, at least one, in each array. "
            f"Received: {counts}"
        )


def check_shape(name, array, shape):
    """None in `shape` is any size but 0."""
    if not isinstance(array, np.ndarray):
        raise ValueError(
            f"`{name}` must be an array. Received: {name} of {type(array).__name__}"
        )
    fits = array.ndim == len(shape) and all(
        have == want if want is not None else have > 0
        for have, want in zip(array.shape, shape)
    )
    if not fits:
        listed = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"`{name}` must have shape ({listed}). Received: {name}.shape={array.shape}"
        )


def check_mask(name, mask, shape):
    """Each sequence has a real token."""
    check_shape(name, mask, shape)
    empty = np.flatnonzero(~mask.astype("bool").any(axis=-1))
    if empty.size:
        raise ValueError(
            f"`{name}` must have at least one real token in each sequence. Received: "
            f"none in {empty.size} of {len(mask)}, first in number {empty[0]}"
        )


def check_finite(name, array):
    wrong = np.argwhere(~np.isfinite(array))
    if wrong.size:
        place = tuple(wrong[0].tolist())
        raise ValueError(
            f"`{name}` must be finite. Received: {array[place]} at {place}, "
            f"{len(wrong)} in all"
        )


def check_range(name, array, low, high):
    check_finite(name, array)
    if array.size and (array.min() < low or array.max() > high):
        raise ValueError(
            f"`{name}` must be from {low} to {high}. "
            f"Received: {name} from {array.min()} to {array.max()}"
        )


def check_num_classes(num_classes):
    check_positive_int("num_classes", num_classes)
    if num_classes == 1:
        raise ValueError(
            "`num_classes` must be two or more; two for yes or no. "
            "Received: num_classes=1"
        )


def check_labels(y, count, num_classes):
    """Classes as integers `(b,)`, `(b, 1)`, or shares of each `(b, num_classes)`."""
    if y is None or len(y) != count:
        raise ValueError(
            f"`y` must hold a label for each of the {count} samples. "
            f"Received: y={'None' if y is None else f'{len(y)} labels'}"
        )
    if y.ndim == 2 and y.shape[1] == num_classes:
        check_range("y", y, 0, 1)
    else:
        check_shape("y", y, (None, 1) if y.ndim == 2 else (None,))
        check_ids("y", y, num_classes)
