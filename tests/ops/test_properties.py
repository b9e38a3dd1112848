"""op = its loops, over random shapes, options, masks and segments."""

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from keras_flash.ops import activations
from keras_flash.ops import causal_flow
from keras_flash.ops import flow_attention as flow
from keras_flash.ops import gated_attention_unit as gated
from keras_flash.ops import mixed_chunk_attention as mixed
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import to_numpy
from tests.reference.flow_attention import flow_attention
from tests.reference.gated_attention_unit import gated_attention
from tests.reference.mixed_chunk_attention import mixed_chunk_attention

# On JAX each example is a compilation.
EXAMPLES = 20 if BACKEND == "jax" else 100
KERNELS = ("relu_squared", "laplace", "softmax", "sigmoid")


def examples(function):
    suppressed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=suppressed,
    )(function)


def compute(op, *tensors):
    """The op in inference, compiled on JAX; NumPy in and out."""
    if BACKEND == "jax":
        import jax

        return jax.jit(op)(*tensors)
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, tensors)
    return op(*tensors)


def kernel(name):
    return name if name == "softmax" else activations.get(name)


@st.composite
def rows(draw):
    """batch, length, a mask or None, segment ids or None, a generator."""
    batch = draw(st.integers(1, 3))
    length = draw(st.integers(1, 14))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = ids = None
    if draw(st.booleans()):
        mask = generator.random((batch, length)) < draw(
            st.sampled_from([0.0, 0.5, 0.9])
        )
    if draw(st.booleans()):
        changes = generator.random((batch, length)) < draw(st.sampled_from([0.1, 0.5]))
        ids = np.cumsum(changes, axis=1).astype("int32") % 3
    return batch, length, mask, ids, generator


def positional(op, names, **options):
    """The op as a function of tensors alone, those that are None left out."""

    def function(*tensors):
        return op(**dict(zip(names, tensors, strict=True)), **options)

    return function


def given_tensors(**tensors):
    """Names and values of the tensors that are not None."""
    kept = {name: value for name, value in tensors.items() if value is not None}
    return tuple(kept), tuple(kept.values())


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(gated, "MIN_ROWS", 3)
    monkeypatch.setattr(causal_flow, "CHUNK", 3)
    monkeypatch.setattr(causal_flow, "SUMS", 2)


@examples
@given(
    rows(),
    st.booleans(),
    st.sampled_from(KERNELS),
    st.sampled_from(["visible", 5]),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_gated_attention(row, causal, name, normalization, biased, key_dim, value_dim):
    batch, length, mask, ids, generator = row
    q, k = generator.normal(size=(2, batch, length, key_dim)).astype("float32")
    v = generator.normal(size=(batch, length, value_dim)).astype("float32")
    bias = generator.normal(size=2 * length - 1).astype("float32") if biased else None
    names, tensors = given_tensors(
        queries=q, keys=k, values=v, bias=bias, mask=mask, segment_ids=ids
    )
    options = dict(causal=causal, normalization_length=normalization)
    op = positional(gated.gated_attention, names, activation=kernel(name), **options)
    wanted = gated_attention(
        *(x.astype("float64") for x in (q, k, v)),
        bias=(lambda distance: bias[distance + length - 1]) if biased else None,
        mask=mask,
        segment_ids=ids,
        activation=name,
        **options,
    )
    assert close(compute(op, *tensors), wanted, v)


@examples
@given(
    rows(),
    st.booleans(),
    st.sampled_from(KERNELS),
    st.sampled_from(["mean", "chunk", "sum"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["both", "local", "global"]),
    st.integers(1, 6),
)
def test_mixed_chunk_attention(
    row, causal, name, normalization, scaled, biased, branches, chunk_size
):
    batch, length, mask, ids, generator = row
    views = generator.normal(size=(4, batch, length, 3)).astype("float32")
    v = generator.normal(size=(batch, length, 2)).astype("float32")
    size = 2 * chunk_size - 1
    bias = generator.normal(size=size).astype("float32") if biased else None
    names, tensors = given_tensors(
        quadratic=None if branches == "global" else tuple(views[:2]),
        linear=None if branches == "local" else tuple(views[2:]),
        values=v,
        bias=bias,
        mask=mask,
        segment_ids=ids,
    )
    options = dict(
        chunk_size=chunk_size,
        causal=causal,
        scale_scores=scaled,
        global_normalization=normalization,
    )
    missing = {n: None for n in ("quadratic", "linear") if n not in names}
    op = positional(
        mixed.mixed_chunk_attention,
        names,
        activation=kernel(name),
        **missing,
        **options,
    )
    exact = views.astype("float64")
    wanted = mixed_chunk_attention(
        None if branches == "global" else exact[:2],
        None if branches == "local" else exact[2:],
        v.astype("float64"),
        bias=(lambda distance: bias[distance + chunk_size - 1]) if biased else None,
        mask=mask,
        segment_ids=ids,
        activation=name,
        **options,
    )
    assert close(compute(op, *tensors), wanted, v)


@examples
@given(
    rows(),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from(["sigmoid", "elu", "relu"]),
    st.sampled_from(["softmax", "sigmoid", None]),
    st.sampled_from(["sigmoid", "softmax", None]),
    st.sampled_from([None, 1.0]),
    st.booleans(),
)
def test_flow_attention(
    row, causal, sources, heads, feature_map, competition, allocation, clip, masked
):
    batch, length, mask, _, generator = row
    sources = length if causal else sources
    allocation = "sigmoid" if causal and allocation == "softmax" else allocation
    q = generator.normal(size=(batch, heads, length, 3)).astype("float32")
    k = generator.normal(size=(batch, heads, sources, 3)).astype("float32")
    v = generator.normal(size=(batch, heads, sources, 2)).astype("float32")
    key_mask = generator.random((batch, sources)) < 0.7 if masked else None
    names, tensors = given_tensors(
        queries=q, keys=k, values=v, query_mask=mask, key_mask=key_mask
    )
    options = dict(
        causal=causal,
        feature_map=feature_map,
        competition=competition,
        allocation=allocation,
        competition_clip=clip,
        # Large enough that the flow of nothing is well conditioned too.
        epsilon=1e-3,
    )
    op = positional(flow.flow_attention, names, **options)
    outputs, quantities = compute(op, *tensors)
    wanted, wanted_quantities = flow_attention(
        *(x.astype("float64") for x in (q, k, v)),
        query_mask=mask,
        key_mask=key_mask,
        **options,
    )
    real = np.ones((batch, length), bool) if mask is None else mask
    if causal and key_mask is not None:
        real = real & key_mask
    rows_of = np.broadcast_to(real[:, None], (batch, heads, length))
    assert close(to_numpy(outputs)[rows_of], wanted[rows_of], v)
    assert close(quantities["incoming"], wanted_quantities["incoming"], q)
    assert close(quantities["competition"], wanted_quantities["competition"], k)
    real = np.ones((batch, sources), bool) if key_mask is None else key_mask
    if causal and mask is not None:
        real = real & mask
    keys_of = np.broadcast_to(real[:, None], (batch, heads, sources))
    found = to_numpy(quantities["outgoing"])[keys_of]
    assert close(found, wanted_quantities["outgoing"][keys_of], k)
    found = to_numpy(quantities["allocation"])[rows_of]
    assert close(found, wanted_quantities["allocation"][rows_of], q)


def close(result, wanted, inputs):
    """Within 1e-5 of the largest entry; of the inputs where all cancels out."""
    if not wanted.size:
        return True
    floor = 1e-2 * np.abs(inputs).max()
    scale = np.abs(wanted).max()
    return error(result, wanted) * scale < 1e-5 * max(scale, floor)
