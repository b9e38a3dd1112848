"""The laws that every attention layer holds, for every option that allows them."""

import numpy as np
import pytest

from tests.catalogue import CAUSAL
from tests.catalogue import CHUNK
from tests.catalogue import GATED_VARIANTS
from tests.catalogue import VARIANTS
from tests.catalogue import WIDTH
from tests.catalogue import expected
from tests.catalogue import is_flow
from tests.catalogue import make
from tests.helpers import error
from tests.helpers import gradients
from tests.helpers import normal
from tests.helpers import run
from tests.helpers import weights_of

LONG = 3 * CHUNK + 5
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, LONG)
# The last segment comes back to the id of the first.
SEGMENTS = np.array(
    [[5] * 3 + [2] * 7 + [8] * 2 + [5] * 5, [0] * 1 + [1] * 15 + [0] * 1]
)
MASK = np.array(
    [[1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1], [0] * 6 + [1] * 9 + [0] * 2],
    bool,
)


@pytest.mark.parametrize("name", VARIANTS)
def test_catalogue_mixes_tokens(name):
    """The other tests would pass in the dead zone of squared relu."""
    layer, x = make(name), normal(2, LONG, WIDTH)
    before, changed = run(layer, x), x.copy()
    changed[:, :2] += 1.0
    after = run(layer, changed)
    assert error(after[:, 2:], before[:, 2:]) > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_equals_loops_at_every_length(name):
    layer = make(name)
    for length in LENGTHS:
        x = normal(2 if length == LONG else 1, length, WIDTH, seed=length)
        assert error(run(layer, x), expected(name, layer, x)) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_equals_loops_with_mask(name):
    layer, x = make(name), normal(2, LONG, WIDTH)
    result = run(layer, x, mask=MASK)
    wanted = expected(name, layer, x, MASK)
    assert error(result[MASK], wanted[MASK]) < 1e-5


@pytest.mark.parametrize("name", GATED_VARIANTS)
def test_equals_loops_with_segments_and_mask(name):
    layer, x = make(name), normal(2, LONG, WIDTH)
    result = run(layer, x, segment_ids=SEGMENTS)
    assert error(result, expected(name, layer, x, None, SEGMENTS)) < 1e-5
    result = run(layer, x, segment_ids=SEGMENTS, mask=MASK)
    wanted = expected(name, layer, x, MASK, SEGMENTS)
    assert error(result[MASK], wanted[MASK]) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_equal_finite_differences(name):
    layer, x = make(name), normal(1, CHUNK + 2, WIDTH, seed=3)
    mask = np.array([[1, 1, 1, 0, 1, 1]], bool)
    cotangent = normal(1, CHUNK + 2, WIDTH, seed=4) * mask[..., None]
    found, found_weights = gradients(layer, cotangent, x, mask=mask)

    def value(x, weights=None):
        return (expected(name, layer, x, mask, weights=weights) * cotangent).sum()

    step, x = 1e-5, x.astype("float64")
    wanted = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        change = np.zeros(x.shape)
        change[index] = step
        wanted[index] = (value(x + change) - value(x - change)) / (2 * step)
    assert error(found, wanted) < 1e-4

    # For the weights along three random directions.
    weights = weights_of(layer)
    by_name = dict(zip(weights, found_weights, strict=True))
    scale = np.sqrt(sum((gradient**2).sum() for gradient in found_weights))
    for seed in range(3):
        ways = {n: normal(*w.shape, seed=10 * seed) for n, w in weights.items()}
        slope = sum((ways[n] * by_name[n]).sum() for n in ways)
        ends = [
            value(x, {n: w + sign * step * ways[n] for n, w in weights.items()})
            for sign in (1, -1)
        ]
        assert abs(slope - (ends[0] - ends[1]) / (2 * step)) < 1e-4 * scale


@pytest.mark.parametrize("name", CAUSAL)
def test_future_changes_nothing(name):
    layer, x = make(name), normal(2, LONG, WIDTH)
    whole = run(layer, x)
    for cut in (1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3):
        changed = x.copy()
        changed[:, cut:] = normal(2, LONG - cut, WIDTH, seed=5, scale=100)
        after = run(layer, changed)
        assert (after[:, :cut] == whole[:, :cut]).all()
        assert (after[:, cut:] != whole[:, cut:]).any()
    cut = CHUNK + 1
    assert error(run(layer, x[:1, :cut]), whole[:1, :cut]) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_changes_nothing(name):
    layer, x = make(name), normal(2, LONG, WIDTH)
    alone = run(layer, x)
    extra = 2 * CHUNK  # whole chunks, as MixedChunkAttention asks on the left
    padding = normal(2, extra, WIDTH, seed=6, scale=100)
    mask = np.arange(LONG + extra)[None].repeat(2, 0) < LONG
    right = run(layer, np.concatenate([x, padding], axis=1), mask=mask)
    assert error(right[:, :LONG], alone) < 1e-5
    left = run(layer, np.concatenate([padding, x], axis=1), mask=mask[:, ::-1].copy())
    assert error(left[:, extra:], alone) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_neighbours_change_nothing(name):
    layer, x = make(name), normal(2, LONG, WIDTH)
    before = run(layer, x)
    loud = x * np.array([1e4, 1.0], "float32")[:, None, None]
    assert error(run(layer, loud)[1], before[1]) < 1e-6
    if is_flow(name):
        return
    before = run(layer, x, segment_ids=SEGMENTS)
    for row in range(2):
        starts = np.flatnonzero(np.diff(SEGMENTS[row])) + 1
        for place in np.split(np.arange(LONG), starts):
            loud = x.copy()
            loud[row, place] *= 1e4
            after = run(layer, loud, segment_ids=SEGMENTS)
            others = np.setdiff1d(np.arange(LONG), place)
            assert error(after[row, others], before[row, others]) < 1e-6
            assert error(after[1 - row], before[1 - row]) < 1e-6


@pytest.mark.parametrize("name", GATED_VARIANTS)
def test_packed_segments_equal_separate_calls(name):
    layer, x = make(name), normal(1, 4 * CHUNK, WIDTH)
    packed = run(layer, x, segment_ids=np.repeat([[3, 1, 1, 3]], CHUNK, axis=1))
    for start, stop in ((0, 1), (1, 3), (3, 4)):
        piece = slice(start * CHUNK, stop * CHUNK)
        assert error(packed[:, piece], run(layer, x[:, piece])) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_fully_masked_row_is_finite(name):
    layer, x = make(name), normal(2, LONG, WIDTH)
    mask = np.ones((2, LONG), bool)
    mask[0] = False
    assert np.isfinite(run(layer, x, mask=mask)).all()
    x = normal(1, CHUNK + 2, WIDTH)
    mask = np.zeros((1, CHUNK + 2), bool)
    found, found_weights = gradients(layer, np.ones_like(x), x, mask=mask)
    assert np.isfinite(found).all()
    assert all(np.isfinite(gradient).all() for gradient in found_weights)
