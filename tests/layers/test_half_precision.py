"""float16 and bfloat16 at 8,192 positions against float32."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.catalogue import VARIANTS
from tests.catalogue import WIDTH
from tests.catalogue import SelfFlow
from tests.catalogue import is_flow
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import run
from tests.helpers import set_weights
from tests.helpers import to_numpy

LENGTH = 8192
LARGEST = 3e4  # beyond, float16 itself has no room


def width_of(name):
    # A token whose features are all about zero has no direction in its flow, at any
    # precision. Relu of three features makes such tokens, relu of 32 does not.
    return 32 if name.endswith("-relu") else WIDTH


def layer_of(name, policy, start):
    layer_class, options = VARIANTS[name]
    if name.endswith("-relu"):
        options = dict(options, key_dim=32)
    layer_class = SelfFlow if is_flow(name) else layer_class
    layer = layer_class(**options, dtype=policy)
    layer.build((None, None, width_of(name)))
    if start == "random":
        set_weights(layer)
    return layer


@pytest.fixture(scope="module")
def largest_error():
    """2e-2, and twice that where the device does not round its own products.

    On a CPU without bfloat16 instructions TensorFlow cuts the bits off, half a unit
    towards zero on average in every projection, and up to a whole one instead of a
    half. 1 + 0.75 units, rounded to the nearest, is 1 + 1 unit.
    """
    unit = 2.0**-7
    ones = ops.ones((64, 2), "bfloat16")
    column = ops.cast([[1.0] * 64, [0.75 * unit] * 64], "bfloat16")
    rounds = (to_numpy(ops.matmul(ones, column)) == 1 + unit).all()
    assert rounds or BACKEND == "tensorflow"
    return 2e-2 if rounds else 4e-2


LOUD = ("sum", "unscaled")  # with random weights float16 may have no room for them


@pytest.mark.parametrize(
    ("name", "start"),
    [(name, "random") for name in VARIANTS]
    + [(name, "default") for name in VARIANTS if name.endswith(("plain", *LOUD))],
)
def test_close_to_float32(name, start, largest_error):
    x = normal(1, LENGTH, width_of(name))
    keras.utils.set_random_seed(3)
    exact_layer = layer_of(name, "float32", start)
    exact = run(exact_layer, x)
    if start == "random" and np.abs(exact).max() > LARGEST:
        assert name.endswith(LOUD)
        pytest.skip("float16 has no room for the float32 result")
    for policy in ("mixed_float16", "mixed_bfloat16"):
        layer = layer_of(name, policy, start)
        layer.set_weights(exact_layer.get_weights())
        assert error(run(layer, x), exact) < largest_error
