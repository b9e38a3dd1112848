"""The laws that every attention layer holds, for every option that allows them."""

import numpy as np
import pytest

from keras_flash.ops import causal_flow as flow
from keras_flash.ops import gated_attention_unit as gated
from tests.catalogue import CAUSAL
from tests.catalogue import CHUNK
from tests.catalogue import GATED_VARIANTS
from tests.catalogue import VARIANTS
from tests.catalogue import WIDTH
from tests.catalogue import expected
from tests.catalogue import is_flow
from tests.catalogue import make
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import gradients
from tests.helpers import normal
from tests.helpers import run
from tests.helpers import to_numpy
from tests.helpers import weights_of

# The tests share these few shapes, and with them what JAX has compiled.
SHORT = 2 * CHUNK + 1
LONG = 3 * CHUNK + 5
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, SHORT, LONG)
# The last segment comes back to the id of the first.
SEGMENTS = np.array(
    [[5] * 3 + [2] * 7 + [8] * 2 + [5] * 5, [0] * 1 + [1] * 15 + [0] * 1]
)
MASK = np.array(
    [[1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1], [0] * 6 + [1] * 9 + [0] * 2],
    bool,
)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Several row blocks and several chunks at the lengths of these tests."""
    monkeypatch.setattr(gated, "MIN_ROWS", 2 * CHUNK)
    monkeypatch.setattr(flow, "CHUNK", CHUNK)
    monkeypatch.setattr(flow, "SUMS", 2)


def conditions(name):
    """No masks, a mask, and segments where the layer takes them."""
    yield {}
    yield {"mask": MASK}
    if not is_flow(name):
        yield {"segment_ids": SEGMENTS}


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
        x = normal(1 if length == 1 else 2, length, WIDTH, seed=length)
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


@pytest.mark.parametrize(
    ("name", "segmented"),
    [(name, False) for name in VARIANTS]
    + [(n, True) for n in GATED_VARIANTS if n.endswith(("plain", "softmax", "global"))],
)
def test_gradients_equal_finite_differences(name, segmented):
    """For each token and each weight, along a random direction."""
    layer, x = make(name), normal(1, SHORT, WIDTH, seed=3)
    mask = np.array([[1, 1, 1, 0, 1, 1, 1, 1, 1]], bool)
    ids = np.array([[4] * 3 + [7] * 6]) if segmented else None
    cotangent = normal(1, SHORT, WIDTH, seed=4) * mask[..., None]
    more = {"segment_ids": ids} if segmented else {}
    found_x, found_weights = gradients(layer, cotangent, x, mask=mask, **more)
    values = {"inputs": x.astype("float64"), **weights_of(layer)}
    found = dict(zip(values, [found_x, *found_weights], strict=True))

    def value(changed):
        weights = {**values, **changed}
        y = expected(name, layer, weights.pop("inputs"), mask, ids, weights=weights)
        return (y * cotangent).sum()

    ways = [(n, normal(*tensor.shape, seed=5)) for n, tensor in values.items()]
    tokens = np.eye(SHORT)[:, None, :, None]  # (token, 1, t, 1)
    ways = [("inputs", token * ways[0][1]) for token in tokens] + ways[1:]
    step, largest = 1e-5, max(np.abs(gradient).max() for gradient in found.values())
    for n, way in ways:
        ends = [value({n: values[n] + sign * step * way}) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        # Of the tensor's own size, or of the largest where it cancels to nothing.
        size = max(np.linalg.norm(found[n]), 1e-2 * largest)
        assert abs((way * found[n]).sum() - slope) < 1e-4 * size, n


@pytest.mark.parametrize("name", CAUSAL)
def test_future_changes_nothing(name):
    layer, x = make(name), normal(2, LONG, WIDTH)
    for condition in conditions(name):
        whole = run(layer, x, **condition)
        for cut in (1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3):
            changed = x.copy()
            changed[:, cut:] = normal(2, LONG - cut, WIDTH, seed=5, scale=100)
            after = run(layer, changed, **condition)
            assert (after[:, :cut] == whole[:, :cut]).all()
            assert (after[:, cut:] != whole[:, cut:]).any()
    whole, cut = run(layer, x), CHUNK + 1
    assert error(run(layer, x[:, :cut]), whole[:, :cut]) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_changes_nothing(name):
    layer, x = make(name), normal(2, SHORT, WIDTH)
    alone = run(layer, x)
    extra = LONG - SHORT  # whole chunks, as MixedChunkAttention asks on the left
    padding = normal(2, extra, WIDTH, seed=6, scale=100)
    mask = np.arange(LONG)[None].repeat(2, 0) < SHORT
    right = run(layer, np.concatenate([x, padding], axis=1), mask=mask)
    assert error(right[:, :SHORT], alone) < 1e-5
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
    layer, x = make(name), normal(2, LONG, WIDTH)
    starts = (0, CHUNK, 2 * CHUNK, LONG)
    ids = np.repeat([[3, 1, 3]] * 2, np.diff(starts), axis=1)
    packed = run(layer, x, segment_ids=ids)
    for start, stop in zip(starts, starts[1:]):
        alone = run(layer, x[:, start:stop])
        assert error(packed[:, start:stop], alone) < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_fully_masked_row_is_finite(name):
    layer, x = make(name), normal(2, LONG, WIDTH)
    mask = np.ones((2, LONG), bool)
    mask[0] = False
    assert np.isfinite(run(layer, x, mask=mask)).all()
    x = normal(1, SHORT, WIDTH)
    mask = np.zeros((1, SHORT), bool)
    found, found_weights = gradients(layer, np.ones_like(x), x, mask=mask)
    assert np.isfinite(found).all()
    assert all(np.isfinite(gradient).all() for gradient in found_weights)


@pytest.mark.skipif(BACKEND != "jax", reason="jax.jit only")
@pytest.mark.parametrize("name", VARIANTS)
def test_jit_changes_nothing(name):
    import jax

    layer, x = make(name), normal(2, LONG, WIDTH)
    more = {"mask": MASK} if is_flow(name) else {"mask": MASK, "segment_ids": SEGMENTS}
    result = jax.jit(lambda x, more: layer(x, **more))(x, more)
    assert error(to_numpy(result)[MASK], run(layer, x, **more)[MASK]) < 1e-5
