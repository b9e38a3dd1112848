"""The identities of the paper, the authors' numbers, and the shape of the work."""

import pathlib

import keras
import numpy as np
import pytest

from keras_flash.ops.flow_attention import flow_attention
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import to_numpy
from tests.ops.test_properties import compute
from tests.ops.test_properties import positional
from tests.reference.flow_attention import flow_attention as loops

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
NAMES = ("queries", "keys", "values")


def inputs(length, heads=2, key_dim=4, value_dim=3, scale=1.0):
    q = normal(1, heads, length, key_dim, scale=scale)
    k = normal(1, heads, length, key_dim, seed=1, scale=scale)
    return q, k, normal(1, heads, length, value_dim, seed=2)


def test_conservation():
    q, k, _ = inputs(23)
    k = k[:, :, :9]
    # With values of one the flow out of each source is its competition.
    v = np.ones((1, 2, 9, 1), "float32")
    op = positional(flow_attention, NAMES, epsilon=0.0)
    _, flow = compute(op, q, k, v)
    phi_q, phi_k = 1 / (1 + np.exp(-q)), 1 / (1 + np.exp(-k))
    incoming, outgoing = to_numpy(flow["incoming"]), to_numpy(flow["outgoing"])
    capacity = np.einsum("bhtd,bhsd->bhts", phi_q, phi_k)
    assert error(incoming, capacity.sum(-1)) < 1e-5
    assert error(outgoing, capacity.sum(-2)) < 1e-5
    # sum of the conserved sources = L, of the conserved sinks = S.
    assert error((capacity / incoming[..., None]).sum((-1, -2)), [[23, 23]]) < 1e-5
    assert error((capacity / outgoing[..., None, :]).sum((-1, -2)), [[9, 9]]) < 1e-5
    assert error(to_numpy(flow["competition"]).sum(-1), [[9, 9]]) < 1e-5


def test_several_chunks_equal_loops():
    tensors = inputs(300)
    outputs, flow = compute(positional(flow_attention, NAMES, causal=True), *tensors)
    wanted, wanted_flow = loops(*(x.astype("float64") for x in tensors), causal=True)
    assert error(outputs, wanted) < 1e-5
    for name, value in wanted_flow.items():
        assert error(flow[name], value) < 1e-5


def test_large_scores_stay_stable():
    """O' in the thousands, with no clip: causal, quiet keys and then a loud one."""
    q, k, v = inputs(40, heads=1)
    k -= 9.0
    k[:, :, 30:] += 16.0
    assert 1000 < competition_score(q, k, True) < 10_000
    # float32 holds O' itself to 1e-7 of its size, and competition is its exponential.
    assert flow_error(q, k, v, causal=True) < 1e-3


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_moderate_scores_are_exact(causal):
    """|O'| up to 50, where the exponential alone would overflow in float16."""
    q, k, v = inputs(40, heads=1)
    k -= 4.0 if causal else 6.0
    k[:, :, 30 if causal else 39 :] += 7.0 if causal else 9.0
    assert 20 < competition_score(q, k, causal) < 50
    assert flow_error(q, k, v, causal=causal) < 1e-5


def test_elu_does_not_cancel():
    q, k, v = inputs(20)
    op = positional(flow_attention, NAMES, feature_map="elu", epsilon=1e-9)
    outputs, _ = compute(op, q - 10, k - 10, v)
    exact = ((x - 10).astype("float64") for x in (q, k))
    wanted, _ = loops(*exact, v, feature_map="elu", epsilon=1e-9)
    assert error(outputs, wanted) < 1e-5


def competition_score(q, k, causal):
    """The largest O', in float64."""
    phi_q, phi_k = (1 / (1 + np.exp(-x.astype("float64"))) for x in (q, k))
    capacity = np.einsum("bhtd,bhsd->bhts", phi_q, phi_k)
    if not causal:
        return (capacity / capacity.sum(-1, keepdims=True)).sum(-2).max()
    length = q.shape[2]
    incoming = np.tril(capacity).sum(-1)
    count = np.arange(1, length + 1)
    shares = np.triu(capacity * (count / incoming)[..., None])
    return (shares.sum(-2) / count).max()


def flow_error(q, k, v, causal):
    op = positional(flow_attention, NAMES, causal=causal)
    outputs, flow = compute(op, q, k, v)
    wanted, wanted_flow = loops(
        *(x.astype("float64") for x in (q, k, v)), causal=causal
    )
    competition = error(flow["competition"], wanted_flow["competition"])
    return max(competition, error(outputs, wanted))


@pytest.mark.skipif(BACKEND != "jax", reason="reads the program that JAX traced")
def test_causal_memory_is_linear():
    import jax

    def largest(length):
        shapes = [jax.ShapeDtypeStruct((1, 2, length, 16), "float32")] * 3
        op = positional(flow_attention, NAMES, causal=True)
        equations = jax.make_jaxpr(op)(*shapes).eqns
        return max(np.prod(v.aval.shape) for e in equations for v in e.outvars)

    assert largest(4096) == 2 * largest(2048)
    # One (64, 64) tile for each 64 tokens, far from one (16, 16) matrix a token.
    assert largest(4096) == 2 * 4096 * 64


@pytest.mark.parametrize("name", ["self", "cross", "causal", "clip"])
def test_golden(name):
    """Outputs of the authors' published core code, in the op and in the layer."""
    from keras_flash import FlowAttention

    golden = np.load(GOLDEN / f"flow_{name}.npz")
    heads = int(golden["num_heads"])
    layer = FlowAttention(
        heads,
        golden["query_kernel"].shape[1] // heads,
        value_dim=golden["value_kernel"].shape[1] // heads,
        output_dim=golden["out_kernel"].shape[1],
        causal=name == "causal",
        competition_clip=1.0,
    )
    layer.build(golden["query"].shape, golden["source"].shape)
    for part in ("query", "key", "value", "output"):
        dense = getattr(layer, f"{part}_dense")
        short = part.replace("output", "out")
        dense.kernel.assign(golden[f"{short}_kernel"])
        dense.bias.assign(golden[f"{short}_bias"])
    query, source = (golden[n].astype("float32") for n in ("query", "source"))
    result = layer(
        keras.ops.convert_to_tensor(query), keras.ops.convert_to_tensor(source)
    )
    assert error(result, golden["output"]) < 1e-5
