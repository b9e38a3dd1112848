"""The law of streaming: any cut of a sequence gives the outputs of one call."""

import keras
import numpy as np
import pytest

from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention
from keras_flash.ops import causal_flow
from keras_flash.ops import gated_attention_unit as gated
from tests.catalogue import CAUSAL
from tests.catalogue import CHUNK
from tests.catalogue import WIDTH
from tests.catalogue import expected
from tests.catalogue import is_flow
from tests.catalogue import make
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import set_weights
from tests.helpers import to_numpy

LENGTH = 17  # C is 4
# Single tokens; pieces longer than two chunks; starts at every place in a chunk.
CUTS = ([1] * 17, [5, 1, 9, 1, 1], [9, 5, 1, 1, 1])
PLAIN = [name for name in CAUSAL if name.endswith("plain")]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(gated, "MIN_ROWS", CHUNK)
    monkeypatch.setattr(causal_flow, "CHUNK", CHUNK)
    monkeypatch.setattr(causal_flow, "SUMS", 2)


def streaming(name):
    """The layer of the catalogue that has `stream`."""
    layer = make(name)
    return layer.flow if is_flow(name) else layer


def initial(layer, batch_size=2, max_length=LENGTH):
    more = (max_length,) if isinstance(layer, GatedAttentionUnit) else ()
    return layer.get_initial_state(batch_size, *more)


def stream(layer, x, cut, state=None):
    """Outputs of all pieces, and the last state."""
    state = initial(layer, x.shape[0]) if state is None else state
    outputs, start = [], 0
    for size in cut:
        y, state = layer.stream(x[:, start : start + size], state)
        outputs.append(to_numpy(y))
        start += size
    return np.concatenate([x[:, :0], *outputs], axis=1), state


def states_differ(first, second):
    assert set(first) == set(second)
    return max(error(first[leaf], to_numpy(second[leaf])) for leaf in first)


@pytest.mark.parametrize("name", CAUSAL)
def test_any_cut_equals_one_call(name):
    layer, x = streaming(name), normal(2, LENGTH, WIDTH)
    wanted = expected(name, make(name), x)
    for cut in CUTS:
        outputs, _ = stream(layer, x, cut)
        assert error(outputs, wanted) < 2e-5, cut


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only there it can be unknown")
@pytest.mark.parametrize("name", PLAIN)
def test_pieces_of_unknown_length(name):
    """One graph for pieces of any number of tokens and rows."""
    import tensorflow as tf

    layer, x = streaming(name), normal(2, LENGTH, WIDTH)
    wanted = expected(name, make(name), x)
    state = initial(layer)
    spec = {k: tf.TensorSpec((None, *v.shape[1:]), v.dtype) for k, v in state.items()}
    graph = tf.function(
        layer.stream, input_signature=[tf.TensorSpec((None, None, WIDTH)), spec]
    )
    first, state = graph(x[:, :5], state)
    second, state = graph(x[:, 5:6], state)
    third, _ = graph(x[:, 6:], state)
    outputs = np.concatenate([first, second, third], axis=1)
    assert error(outputs, wanted) < 2e-5


@pytest.mark.parametrize("name", CAUSAL)
def test_only_length_tokens_are_consumed(name):
    layer, x = streaming(name), normal(2, LENGTH, WIDTH)
    whole = expected(name, make(name), x)
    wild = normal(2, 9, WIDTH, seed=3, scale=1e4)  # what stands behind is not read
    for start, length in ((0, 0), (0, 5), (1, 0), (1, 9), (6, 1), (6, 2), (6, 9)):
        _, before = stream(layer, x, [1] * start)
        piece = wild.copy()
        piece[:, :length] = x[:, start : start + length]
        outputs, after = layer.stream(piece, before, length=length)
        outputs = to_numpy(outputs)
        assert np.isfinite(outputs).all()
        rows = slice(start, start + length)
        assert error(outputs[:, :length], whole[:, rows]) < 2e-5
        _, alone = stream(layer, x[:, rows], [1] * length, before)
        assert states_differ(after, alone) < 1e-5
    # A single token that does not count.
    _, after = layer.stream(wild[:, :1], before, length=0)
    assert states_differ(after, before) == 0


@pytest.mark.parametrize("name", PLAIN)
def test_rows_stand_at_positions_of_their_own(name):
    """A state row knows all it needs: beams gather them, batches mix them."""
    layer, x = streaming(name), normal(2, LENGTH, WIDTH)
    wanted = expected(name, make(name), x)
    starts = (3, 6)
    states = [
        stream(layer, x[row : row + 1, :start], [1] * start)[1]
        for row, start in enumerate(starts)
    ]
    mixed = {
        leaf: keras.ops.concatenate([state[leaf] for state in states])
        for leaf in states[0]
    }
    rows = np.stack([x[row, start : start + 10] for row, start in enumerate(starts)])
    for cut in ([1, 9], [5, 5], [1] * 10):
        outputs, _ = stream(layer, rows, cut, mixed)
        for row, start in enumerate(starts):
            assert error(outputs[row], wanted[row, start : start + 10]) < 2e-5


@pytest.mark.parametrize("name", PLAIN)
def test_one_compiled_step_serves_every_position(name):
    """Single tokens, and pieces of which a traced number counts."""
    layer, x = streaming(name), normal(2, LENGTH, WIDTH)
    wanted, traces = expected(name, make(name), x), 0

    def step(inputs, state, length):
        nonlocal traces
        traces += 1
        return layer.stream(inputs, state, length)

    if BACKEND == "tensorflow":
        import tensorflow as tf

        step = tf.function(step, jit_compile=True)
    elif BACKEND == "jax":
        import jax

        step = jax.jit(step)
    else:
        import torch

        layer.stream(x, initial(layer))  # Keras' first call makes what a guard sees
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(layer.stream, backend="eager", fullgraph=True)
        step = torch.no_grad()(compiled)
    state, position = initial(layer), 0
    shapes = {leaf: (x.shape, x.dtype) for leaf, x in state.items()}
    for size, length in [(5, 3), (5, 5), (5, 0), (5, 1)] + [(1, 1)] * 5 + [(5, 3)]:
        piece = np.zeros((2, size, WIDTH), "float32")
        piece[:, :length] = x[:, position : position + length]
        piece = keras.ops.convert_to_tensor(piece)
        count = keras.ops.convert_to_tensor(length, dtype="int32")
        y, state = step(piece, state, count)
        rows = slice(position, position + length)
        assert error(to_numpy(y)[:, :length], wanted[:, rows]) < 2e-5
        assert {leaf: (x.shape, x.dtype) for leaf, x in state.items()} == shapes
        position += length
    assert position == LENGTH
    if BACKEND == "torch":
        traces = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert traces == 2


@pytest.mark.parametrize("name", PLAIN)
def test_state_is_constant_and_left_as_it_was(name):
    layer, x = streaming(name), normal(2, LENGTH, WIDTH)
    first = initial(layer, max_length=40)
    copy = keras.tree.map_structure(to_numpy, first)
    _, state = stream(layer, x, [5, 1, 9], first)
    # All of it is 0, so that whoever serves a model need not ask it for a state.
    assert all((copy[leaf] == 0).all() for leaf in first)
    assert all((to_numpy(first[leaf]) == copy[leaf]).all() for leaf in first)
    for leaf in first:
        assert first[leaf].shape == state[leaf].shape
        assert first[leaf].dtype == state[leaf].dtype
        assert first[leaf].shape[0] == 2
    if BACKEND == "torch":  # else each step would hold on to all steps before it
        assert not any(leaf.requires_grad for leaf in state.values())


no_float64 = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="Keras computes in float64 on TensorFlow alone"
)


@pytest.mark.parametrize(
    "policy",
    ["mixed_float16", "mixed_bfloat16", pytest.param("float64", marks=no_float64)],
)
@pytest.mark.parametrize(
    ("layer_class", "options"),
    [
        (GatedAttentionUnit, dict(key_dim=16)),
        (MixedChunkAttention, dict(key_dim=16, chunk_size=64)),
        (FlowAttention, dict(num_heads=2, key_dim=16)),
    ],
)
def test_other_precisions(layer_class, options, policy):
    """Sums in float32, caches in the compute dtype, results near those of float32."""
    keras.config.set_dtype_policy(policy)
    layer = layer_class(causal=True, **options)
    keras.config.set_dtype_policy("float32")
    single = layer_class(causal=True, **options)
    shape = (None, None, 32)
    for each in (layer, single):
        each.build(*[shape] * (2 if layer_class is FlowAttention else 1))
        set_weights(each)
    x = normal(1, 520, 32)
    more = (520,) if layer_class is GatedAttentionUnit else ()
    states = [each.get_initial_state(1, *more) for each in (layer, single)]
    sums = "float64" if policy == "float64" else "float32"
    for leaf, value in states[0].items():
        cached = leaf in ("keys", "values") and layer_class is not FlowAttention
        wanted = "int32" if leaf == "position" else sums
        wanted = layer.compute_dtype if cached else wanted
        assert keras.backend.standardize_dtype(value.dtype) == wanted
    for piece in np.split(x, (511, 512, 513, 514), axis=1):
        results = []
        for i, each in enumerate((layer, single)):
            y, states[i] = each.stream(piece, states[i])
            results.append(y)
        assert keras.backend.standardize_dtype(results[0].dtype) == layer.compute_dtype
        assert error(results[0], to_numpy(results[1])) < 2e-2


@pytest.mark.parametrize("name", PLAIN)
def test_neighbours_change_nothing(name):
    layer, x = streaming(name), normal(2, LENGTH, WIDTH)
    loud = x * np.array([1e4, 1.0], "float32")[:, None, None]
    for cut in ([1] * 17, [5, 1, 9, 1, 1]):
        before, _ = stream(layer, x, cut)
        after, _ = stream(layer, loud, cut)
        assert error(after[1], before[1]) < 1e-6


def test_cache_has_an_end():
    layer = streaming("GatedAttentionUnit-causal-plain")
    x = normal(2, LENGTH, WIDTH)
    _, state = stream(layer, x, [9], initial(layer, max_length=10))
    message = (
        r"`inputs` must fit into the `max_length` of the state, here 10\. Received"
    )
    with pytest.raises(ValueError, match=f"{message}: 5 tokens after 9"):
        layer.stream(x[:, :5], state)
    with pytest.raises(ValueError, match=f"{message}: 2 tokens after 9"):
        layer.stream(x[:, :5], state, length=2)
    y, _ = layer.stream(x[:, 9:10], state)
    room, _ = layer.stream(x[:, 9:14], state, length=1)
    assert error(room[:, :1], to_numpy(y)) < 1e-5
    assert np.isfinite(to_numpy(room)).all()


@pytest.mark.skipif(BACKEND == "torch", reason="there a graph is traced with values")
def test_cache_is_nan_past_its_end_where_no_error_can_be_raised():
    layer = streaming("GatedAttentionUnit-causal-plain")
    step = layer.stream
    if BACKEND == "tensorflow":
        import tensorflow as tf

        step = tf.function(step)
    else:
        import jax

        step = jax.jit(step)
    x = keras.ops.convert_to_tensor(normal(2, 5, WIDTH))
    y, state = step(x, initial(layer, max_length=8))
    assert np.isfinite(to_numpy(y)).all()
    for finite in (3, 0):
        y, state = step(x, state)
        assert np.isfinite(to_numpy(y)[:, :finite]).all()
        assert np.isnan(to_numpy(y)[:, finite:]).all()


def test_what_cannot_stream():
    shape = (None, None, WIDTH)
    for layer in (
        GatedAttentionUnit(key_dim=4),
        MixedChunkAttention(key_dim=4, chunk_size=4),
        FlowAttention(num_heads=2, key_dim=3),
    ):
        name = layer.name
        causal = type(layer).from_config(dict(layer.get_config(), causal=True))
        message = rf"must be built before it can stream.* Received: layer='{name}'"
        with pytest.raises(ValueError, match=message):
            initial(causal)
        with pytest.raises(ValueError, match=message):
            causal.stream(normal(2, 3, WIDTH), {})
        layer.build(*[shape] * (2 if isinstance(layer, FlowAttention) else 1))
        message = rf"`causal` must be True .* Received: layer='{name}', causal=False"
        with pytest.raises(ValueError, match=message):
            initial(layer)
        with pytest.raises(ValueError, match=message):
            layer.stream(normal(2, 3, WIDTH), {})


@pytest.mark.parametrize("name", PLAIN)
def test_wrong_states_and_lengths(name):
    layer, x = streaming(name), normal(2, 5, WIDTH)
    state = initial(layer)
    other = {"Gated": "Mixed", "Mixed": "Flow", "FlowA": "Mixed"}[name[:5]]
    other = next(streaming(n) for n in PLAIN if n.startswith(other))
    with pytest.raises(ValueError, match=r"of this layer gave, a dict of .*Received"):
        layer.stream(x, initial(other))
    with pytest.raises(ValueError, match=r"a dict of .*Received: state=None"):
        layer.stream(x, None)
    with pytest.raises(ValueError, match=r"batch size of `inputs`, 2\. Received: .*3"):
        layer.stream(x, initial(layer, batch_size=3))
    wide = {**state, "position": keras.ops.cast(state["position"], "float32")}
    with pytest.raises(ValueError, match=r"this dtype policy, here int32\. Received"):
        layer.stream(x, wide)
    leaf = next(leaf for leaf in state if leaf != "position")
    half = {**state, leaf: keras.ops.cast(state[leaf], "float16")}
    with pytest.raises(ValueError, match=rf"here float32\. Received: state\['{leaf}'"):
        layer.stream(x, half)
    leaf = "summary" if "summary" in state else "values"
    cut = {**state, leaf: state[leaf][..., :-1]}
    with pytest.raises(ValueError, match=rf"with shape .* Received: state\['{leaf}'"):
        layer.stream(x, cut)
    for length in (-1, 6, 2.0, True, np.array([1, 2]), np.array(2.0)):
        with pytest.raises(ValueError, match=r"`length` must be an integer.* Received"):
            layer.stream(x, state, length=length)
    for length in (np.int64(2), np.array(2), keras.ops.convert_to_tensor(2)):
        y, _ = layer.stream(x, state, length=length)
        assert error(y[:, :2], to_numpy(layer.stream(x[:, :2], state)[0])) < 1e-5
    for size in (0, -1, 2.0, None, True):
        with pytest.raises(
            ValueError, match=r"`batch_size` must be a positive integer"
        ):
            initial(layer, batch_size=size)
    with pytest.raises(ValueError, match=r"`inputs` must have shape \(batch, length"):
        layer.stream(x[0], state)
    with pytest.raises(ValueError, match=r"`inputs` must have at least one token"):
        layer.stream(x[:, :0], state)
