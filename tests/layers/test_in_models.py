"""The layers inside Keras: masks, graphs, lengths, dtypes, saving, remat, LoRA."""

import keras
import numpy as np
import pytest

from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention
from keras_flash import RelativePositionBias
from keras_flash import ScaleNorm
from keras_flash import ScaleOffset
from tests.catalogue import CAUSAL
from tests.catalogue import CHUNK
from tests.catalogue import VARIANTS
from tests.catalogue import WIDTH
from tests.catalogue import SelfFlow
from tests.catalogue import is_flow
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import gradients
from tests.helpers import normal
from tests.helpers import set_weights
from tests.helpers import to_numpy
from tests.helpers import weights_of
from tests.reference.flow_attention import flow_attention as flow_loops
from tests.reference.layers import dense

FAMILIES = {
    f"{label}-{name}": (layer_class, dict(options, causal=causal))
    for name, layer_class, options in (
        ("gau", GatedAttentionUnit, dict(key_dim=4)),
        ("mixed", MixedChunkAttention, dict(key_dim=4, chunk_size=4)),
        ("flow", SelfFlow, dict(num_heads=2, key_dim=3)),
    )
    for label, causal in (("full", False), ("causal", True))
}
each_family = pytest.mark.parametrize("family", FAMILIES)
# For what touches the sublayers alone.
each_causal_family = pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.startswith("causal")]
)


def make(family):
    layer_class, options = FAMILIES[family]
    return layer_class(**options)


def token_model(family, jit_compile=False):
    """Embedding(mask_zero) -> layer -> Add -> layer."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, WIDTH, mask_zero=True)(ids)
    x = keras.layers.Add()([x, make(family)(x)])
    outputs = make(family)(x)
    model = keras.Model(ids, outputs)
    set_weights(model)
    model.compile("sgd", "mse", jit_compile=jit_compile)
    return model


@each_family
def test_implicit_mask_reaches_the_second_layer(family):
    model = token_model(family)
    ids = np.random.default_rng(0).integers(1, 11, (2, 9)).astype("int32")
    alone = to_numpy(model(ids))
    padded = np.concatenate([ids, np.zeros((2, 3), "int32")], axis=1)
    eager = model(padded)
    assert error(to_numpy(eager)[:, :9], alone) < 1e-5
    mask = keras.ops.convert_to_numpy(keras.src.backend.get_keras_mask(eager))
    assert (mask == (padded != 0)).all()
    # The graph of predict, compiled and not.
    assert error(model.predict(padded, verbose=0)[:, :9], alone) < 1e-5
    if BACKEND != "torch":  # torch.compile has its own test
        compiled = token_model(family, jit_compile=True)
        compiled.set_weights(model.get_weights())
        assert error(compiled.predict(padded, verbose=0)[:, :9], alone) < 1e-5


@pytest.mark.parametrize("causal", [False, True])
def test_flow_attention_takes_implicit_masks(causal):
    """Keras fills `query_mask` and `value_mask`, and passes the mask on."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, WIDTH, mask_zero=True)(ids)
    for _ in range(2):
        x = keras.layers.Add()([x, FlowAttention(2, 3, causal=causal)(x, x)])
    model = keras.Model(ids, x)
    set_weights(model)
    ids = np.random.default_rng(0).integers(1, 11, (2, 9)).astype("int32")
    alone = to_numpy(model(ids))
    padded = np.concatenate([ids, np.zeros((2, 3), "int32")], axis=1)
    result = model(padded)
    assert error(to_numpy(result)[:, :9], alone) < 1e-5
    assert error(model.predict(padded, verbose=0)[:, :9], alone) < 1e-5
    mask = keras.ops.convert_to_numpy(keras.src.backend.get_keras_mask(result))
    assert (mask == (padded != 0)).all()


@pytest.mark.parametrize("family", [f for f in FAMILIES if "flow" not in f])
def test_implicit_mask_beside_segments(family):
    """Keras leaves `mask` unfilled there; `inputs_mask` must be."""
    ids = keras.Input((None,), dtype="int32")
    segments = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, WIDTH, mask_zero=True)(ids)
    layer = make(family)
    model = keras.Model([ids, segments], layer(x, segment_ids=segments))
    set_weights(model)
    tokens = np.array([[3, 4, 5, 0, 6, 7, 0, 0]], "int32")
    runs = np.array([[1, 1, 1, 1, 2, 2, 2, 2]], "int32")
    embedded = model.layers[1](tokens) if BACKEND != "torch" else None
    result = to_numpy(model([tokens, runs]))
    table = model.get_layer(index=1).embeddings if embedded is None else None
    vectors = to_numpy(table)[tokens] if table is not None else to_numpy(embedded)
    vectors = keras.ops.convert_to_tensor(vectors.astype("float32"))
    wanted = to_numpy(layer(vectors, mask=tokens != 0, segment_ids=runs))
    assert error(result[tokens != 0], wanted[tokens != 0]) < 1e-5
    # Both masks are honoured: an explicit one is ANDed with the implicit one.
    first = tokens != 0
    second = np.array([[1, 0, 1, 1, 1, 1, 1, 1]], bool)
    both = layer(vectors, mask=first, inputs_mask=second, segment_ids=runs)
    anded = layer(vectors, mask=first & second, segment_ids=runs)
    assert (to_numpy(both) == to_numpy(anded)).all()


@each_family
def test_unknown_length(family):
    inputs = keras.Input((None, WIDTH))
    layer = make(family)
    model = keras.Model(inputs, layer(inputs))
    set_weights(model)
    for length in (5, 300):
        x = normal(2, length, WIDTH, seed=length)
        assert error(model(x), to_numpy(layer(x))) < 1e-6
        assert model.predict(x, verbose=0).shape == (2, length, WIDTH)


@pytest.mark.skipif(BACKEND != "jax", reason="a length by name is JAX's own")
@each_family
def test_symbolic_length(family):
    import jax

    layer = make(family)
    layer.build((2, None, WIDTH))
    set_weights(layer)

    def call(x, mask, ids):
        extra = {} if "flow" in family else {"segment_ids": ids}
        return layer(x, mask=mask, **extra)

    (t,) = jax.export.symbolic_shape("t")
    shapes = [((2, t, WIDTH), "float32"), ((2, t), "bool"), ((2, t), "int32")]
    arguments = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    exported = jax.export.export(jax.jit(call))(*arguments)
    for length in (1, 70):
        x = normal(2, length, WIDTH)
        mask = np.random.default_rng(1).random((2, length)) < 0.8
        ids = np.cumsum(np.random.default_rng(2).random((2, length)) < 0.1, axis=1)
        tensors = (x, mask, ids.astype("int32"))
        result, wanted = to_numpy(exported.call(*tensors)), to_numpy(call(*tensors))
        assert error(result[mask], wanted[mask]) < 1e-5


# The options that lead to code of another form.
COMPILED = ("plain", "global", "softmax", "t5", "elu", "softmax_allocation")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow traces so")
@pytest.mark.parametrize(
    ("name", "jit_compile"),
    [
        pytest.param(name, jit, id=f"{name}-{'xla' if jit else 'graph'}")
        for name in VARIANTS
        for jit in (False, True)
        # XLA compiles the same graph: one kind of each layer runs without it.
        if name.split("-")[2] in (COMPILED if jit else ("plain",))
    ],
)
def test_one_graph_serves_every_length(name, jit_compile):
    import tensorflow as tf

    from tests.catalogue import make as variant

    layer = variant(name)
    # Segments do not depend on the other options, and take long to compile.
    segmented = name.endswith("plain") and not is_flow(name)
    signature = [
        tf.TensorSpec((None, None, WIDTH)),
        tf.TensorSpec((None, None), "bool"),
        tf.TensorSpec((None, None), "int32"),
    ]

    @tf.function(input_signature=signature, jit_compile=jit_compile)
    def call(x, mask, ids):
        extra = {"segment_ids": ids} if segmented else {}
        return layer(x, mask=mask, **extra)

    for length in (1, 3 * CHUNK + 5):
        x = normal(2, length, WIDTH)
        mask = np.random.default_rng(1).random((2, length)) < 0.8
        ids = np.repeat([[0] * (length // 2) + [1] * (length - length // 2)], 2, 0)
        extra = {"segment_ids": ids} if segmented else {}
        wanted = to_numpy(layer(x, mask=mask, **extra))
        result = to_numpy(call(x, mask, ids.astype("int32")))
        assert error(result[mask], wanted[mask]) < 1e-5


@pytest.mark.skipif(BACKEND != "torch", reason="torch only")
@each_family
def test_torch_compile_has_no_graph_break(family):
    import torch

    layer, x = make(family), torch.tensor(normal(2, 9, WIDTH))
    layer.build(x.shape)
    set_weights(layer)
    mask = torch.tensor(np.arange(9)[None].repeat(2, 0) < 7)
    ids = torch.tensor([[0] * 5 + [1] * 4] * 2)
    more = {} if "flow" in family else {"segment_ids": ids}
    torch._dynamo.reset()  # programs of other tests count toward its limit
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y = compiled(x, mask=mask, **more)
    assert error(to_numpy(y), to_numpy(layer(x, mask=mask, **more))) < 1e-6
    y.sum().backward()


@pytest.mark.skipif(BACKEND != "torch", reason="torch only")
@pytest.mark.parametrize(
    "name",
    [name for name in CAUSAL if name.split("-")[2] in COMPILED and "plain" not in name],
)
def test_torch_compiles_every_option(name, monkeypatch):
    import torch

    from keras_flash.ops import causal_flow
    from keras_flash.ops import gated_attention_unit
    from tests.catalogue import make as variant

    monkeypatch.setattr(gated_attention_unit, "MIN_ROWS", CHUNK)
    monkeypatch.setattr(causal_flow, "CHUNK", CHUNK)
    monkeypatch.setattr(causal_flow, "SUMS", 2)
    torch._dynamo.reset()
    layer, x = variant(name), torch.tensor(normal(2, 2 * CHUNK + 1, WIDTH))
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert error(to_numpy(compiled(x)), to_numpy(layer(x))) < 1e-6


@pytest.mark.skipif(BACKEND != "torch", reason="torch only")
def test_torch_inductor():
    import torch

    torch._dynamo.reset()
    inputs = keras.Input((None, WIDTH))
    x = inputs
    for family in ("causal-gau", "causal-mixed", "causal-flow"):
        x = keras.layers.Add()([x, make(family)(ScaleNorm()(x))])
    model = keras.Model(inputs, x)
    set_weights(model)
    compiled = torch.compile(model, fullgraph=True)
    data = torch.tensor(normal(2, 9, WIDTH))
    assert error(to_numpy(compiled(data)), to_numpy(model(data))) < 1e-5


def fitted(family, epochs, **compile_options):
    """Losses of learning means over the other tokens, or over those before.

    One token alone tells nothing of them: without the layer the loss stays at 1.
    """
    keras.utils.set_random_seed(1)
    causal, data = family.startswith("causal"), normal(32, 12, WIDTH)
    sums = np.cumsum(data, axis=1) if causal else data.sum(1, keepdims=True)
    count = np.maximum(np.arange(12.0), 1)[:, None] if causal else 11
    target = ((sums - data) / count)[..., :1]

    inputs = keras.Input((None, WIDTH))
    layer = make(family)
    if "flow" not in family:  # squared relu may die in so small a problem
        layer_class, options = FAMILIES[family]
        layer = layer_class(**options, attention_activation="softmax")
    x = keras.layers.Add()([inputs, layer(ScaleNorm()(inputs))])
    last = keras.layers.Dense(1, kernel_initializer="zeros", dtype="float32")
    model = keras.Model(inputs, last(x))
    model.compile(keras.optimizers.Adam(0.01), "mse", **compile_options)
    target = target / target.std()
    history = model.fit(data, target, batch_size=8, epochs=epochs, verbose=0)
    return history.history["loss"]


# Keras itself compiles with inductor on torch, which has a test of its own.
JIT = BACKEND != "torch"


@each_family
def test_fit_learns(family):
    assert fitted(family, epochs=25, jit_compile=JIT)[-1] < 0.6


@each_family
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_training_in_half_precision(family, policy):
    """Gradients as in float32, and finite ones from a fully masked row."""
    x, mask = normal(2, 9, WIDTH), np.array([[False] * 9, [True] * 9])
    results = []
    for dtype in ("float32", policy):
        layer_class, options = FAMILIES[family]
        layer = layer_class(**options, dtype=dtype)
        layer.build(x.shape)
        set_weights(layer)
        cotangent = normal(2, 9, WIDTH, seed=1)
        results.append(gradients(layer, cotangent, x, mask=mask))
    (wanted, wanted_weights), (found, found_weights) = results
    assert error(found[1], wanted[1]) < 3e-2
    largest = max(np.abs(gradient).max() for gradient in wanted_weights)
    for a, b in zip(found_weights, wanted_weights, strict=True):
        assert np.abs(a - b).max() < 3e-2 * largest


def test_fit_in_half_precision():
    exact = fitted("causal-mixed", epochs=2, jit_compile=JIT)
    for policy in ("mixed_float16", "mixed_bfloat16"):
        keras.config.set_dtype_policy(policy)
        losses = fitted("causal-mixed", epochs=2, jit_compile=JIT)
        assert np.abs(np.array(losses) / exact - 1).max() < 0.05


@each_family
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_masks_of_any_dtype_under_mixed_precision(family, policy):
    keras.config.set_dtype_policy(policy)
    layer, x = make(family), normal(2, 9, WIDTH)
    mask = np.arange(9)[None].repeat(2, 0) != 2
    layer.build(x.shape)
    results = [
        layer(x, mask=keras.ops.convert_to_tensor(mask.astype(dtype)))
        for dtype in ("bool", "int32", "float32")
    ]
    dtype = keras.backend.standardize_dtype(results[0].dtype)
    assert dtype == policy.removeprefix("mixed_")
    arrays = [to_numpy(result) for result in results]
    assert (arrays[0] == arrays[1]).all()
    assert (arrays[0] == arrays[2]).all()
    # A mask that is read changes something.
    assert (arrays[0] != to_numpy(layer(x)))[:, 3:].any()


@each_family
@pytest.mark.parametrize("by", ["scope", "argument"])
def test_remat(family, by, monkeypatch):
    plain, x, masks = make(family), normal(2, 9, WIDTH), {}
    if by == "scope":
        with keras.RematScope(mode="full"):
            remat = make(family)
    else:  # with the arguments by name that Keras' own scope cannot pass on
        masks = dict(mask=keras.ops.convert_to_tensor(np.arange(18).reshape(2, 9) < 15))
        layer_class, options = FAMILIES[family]
        remat = layer_class(**options, remat=True)
    for layer in (plain, remat):
        layer.build(x.shape)
        set_weights(layer)
    cotangent = normal(2, 9, WIDTH, seed=1)
    wanted, wanted_weights = gradients(plain, cotangent, x, **masks)
    made, make_again = [], keras.remat
    monkeypatch.setattr(keras, "remat", lambda f: made.append(f) or make_again(f))
    found, found_weights = gradients(remat, cotangent, x, **masks)
    assert len(made) == (by == "argument")
    assert error(found, wanted) < 1e-5
    for a, b in zip(found_weights, wanted_weights, strict=True):
        assert error(a, b) < 1e-4 or np.abs(b).max() < 1e-6


def dense_sublayers(model):
    return [
        sublayer
        for sublayer in model._flatten_layers()
        if isinstance(sublayer, keras.layers.Dense)
    ]


def residual_model(family):
    inputs = keras.Input((None, 8))
    x = ScaleNorm()(inputs)
    if "flow" in family:
        causal = family.startswith("causal")
        y = FlowAttention(num_heads=2, key_dim=3, causal=causal)(x, x)
    else:
        y = make(family)(x)
    x = keras.layers.Add()([inputs, y])
    model = keras.Model(inputs, x)
    set_weights(model)
    return model


@each_causal_family
def test_lora(family, tmp_path):
    model, x = residual_model(family), normal(2, 9, 8)
    before = to_numpy(model(x))
    projections = dense_sublayers(model)
    assert len(projections) == 4
    for projection in projections:
        projection.enable_lora(2)
    assert error(model(x), before) < 1e-6
    trainable = {w.path.split("/")[-1] for w in projections[0].trainable_weights}
    assert trainable == {"lora_kernel_a", "lora_kernel_b", "bias"}
    for projection in projections:
        kernel = projection.lora_kernel_b
        kernel.assign(normal(*kernel.shape, seed=3))
    tuned = to_numpy(model(x))
    assert error(tuned, before) > 1e-3
    model.save(tmp_path / "lora.keras")
    again = keras.saving.load_model(tmp_path / "lora.keras")
    assert error(again(x), tuned) < 1e-5


@each_causal_family
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_quantize_and_reload(family, mode, tmp_path):
    model, x = residual_model(family), normal(2, 9, 8)
    before = to_numpy(model(x))
    model.quantize(mode)
    quantized = to_numpy(model(x))
    assert all(dense.quantization_mode == mode for dense in dense_sublayers(model))
    assert (
        0 < error(quantized, before) < {"int8": 0.05, "int4": 0.3, "float8": 0.1}[mode]
    )
    model.save(tmp_path / "quantized.keras")
    again = keras.saving.load_model(tmp_path / "quantized.keras")
    assert error(again(x), quantized) < 1e-6


@each_causal_family
def test_quantize_with_options_and_reload(family, tmp_path):
    model, x = residual_model(family), normal(2, 9, 8)
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    model.quantize(config=config)
    quantized = to_numpy(model(x))
    model.save(tmp_path / "quantized.keras")
    again = keras.saving.load_model(tmp_path / "quantized.keras")
    assert error(again(x), quantized) < 1e-6


@each_causal_family
def test_weights_file_of_a_subclassed_model(family, tmp_path):
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.block = make(family)

        def call(self, inputs):
            return self.block(inputs)

    x = normal(2, 9, WIDTH)
    first, second = Subclassed(), Subclassed()
    first(x)
    second(x)
    set_weights(first)
    first.save_weights(tmp_path / "model.weights.h5")
    second.load_weights(tmp_path / "model.weights.h5")
    assert error(second(x), to_numpy(first(x))) < 1e-6


def test_return_flow_in_a_functional_model():
    query, source = keras.Input((None, 6)), keras.Input((None, 5))
    layer = FlowAttention(2, 3, value_dim=4, output_dim=7)
    outputs, flow = layer(query, source, return_flow=True)
    model = keras.Model([query, source], [outputs, flow])
    assert outputs.shape == (None, None, 7)
    shapes = {name: value.shape for name, value in flow.items()}
    assert set(shapes) == {"incoming", "outgoing", "competition", "allocation"}
    assert set(shapes.values()) == {(None, 2, None)}
    result, flow = model([normal(2, 4, 6), normal(2, 9, 5)])
    assert tuple(result.shape) == (2, 4, 7)
    assert tuple(flow["incoming"].shape) == (2, 2, 4)
    assert tuple(flow["allocation"].shape) == (2, 2, 4)
    assert tuple(flow["outgoing"].shape) == (2, 2, 9)
    assert tuple(flow["competition"].shape) == (2, 2, 9)
    assert error(to_numpy(flow["competition"]).sum(-1), np.full((2, 2), 9)) < 1e-5


def test_flow_masks_are_anded():
    layer = FlowAttention(2, 3)
    query, value, key = (
        normal(1, 4, 6),
        normal(1, 5, 6, seed=1),
        normal(1, 5, 6, seed=2),
    )
    layer.build(query.shape, value.shape, key.shape)
    set_weights(layer)
    first = np.array([[1, 1, 0, 1, 1]], bool)
    second = np.array([[1, 0, 1, 1, 1]], bool)
    both = layer(query, value, key, value_mask=first, key_mask=second)
    anded = layer(query, value, key, value_mask=first & second)
    short = first[0] & second[0]
    alone = layer(query, value[:, short], key[:, short])
    assert error(both, to_numpy(anded)) < 1e-6
    assert error(both, to_numpy(alone)) < 1e-5
    # Masked queries leave the outgoing sums.
    mask = np.array([[1, 1, 0, 1]], bool)
    masked = to_numpy(layer(query, value, key, query_mask=mask))[mask]
    alone = to_numpy(layer(query[:, mask[0]], value, key))[0]
    assert error(masked, alone) < 1e-5
    # When causal the three are ANDed.
    causal = FlowAttention(2, 3, causal=True)
    query = normal(1, 5, 6)
    causal.build(query.shape, value.shape, key.shape)
    set_weights(causal)
    third = np.array([[1, 1, 1, 1, 0]], bool)
    three = causal(
        query, value, key, query_mask=third, value_mask=first, key_mask=second
    )
    together = first & second & third
    wanted = causal(query, value, key, query_mask=together)
    assert error(to_numpy(three)[together], to_numpy(wanted)[together]) < 1e-6


def test_position_bias_layer_and_its_method():
    scores = normal(2, 3, 5, 9)
    for kind in ("toeplitz", "rotary", "t5"):
        for bidirectional in (True, False):
            layer = RelativePositionBias(kind, bidirectional=bidirectional)
            layer.build(scores.shape)
            set_weights(layer)
            bias = to_numpy(layer.bias(np.arange(5), np.arange(9)))
            assert error(layer(scores), scores + bias) < 1e-6
            # Depends on the distance alone.
            shifted = layer.bias(np.arange(5) + 1_000_000, np.arange(9) + 1_000_000)
            assert error(shifted, bias) < 1e-5
            later = bias[0, 1:] if not bidirectional else bias[0, :1]
            assert error(later, np.full(later.shape, bias[0, 0])) < 1e-7
    assert RelativePositionBias(max_length=511).resolved_kind == "toeplitz"
    assert RelativePositionBias(max_length=512).resolved_kind == "rotary"
    table = RelativePositionBias("toeplitz", max_length=4)
    table.build()
    assert tuple(table.table.shape) == (7, 1)
    with pytest.raises(ValueError, match="`key_positions` must be one axis"):
        table.bias(np.arange(3), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="`scores` must have shape"):
        table(np.zeros(3, "float32"))


@pytest.mark.parametrize("layer", [ScaleNorm(), ScaleOffset(), RelativePositionBias()])
def test_integers_are_not_rounded_to_integers(layer):
    x = np.arange(6).reshape(1, 2, 3)
    result, wanted = (keras.tree.flatten(layer(y))[0] for y in (x, x.astype("float32")))
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    assert (to_numpy(result) == to_numpy(wanted)).all()


def test_masked_tokens_may_be_anything():
    """Values that are not finite, too: what a masked token holds is not read."""
    x, mask = normal(2, 9, WIDTH), np.arange(9)[None].repeat(2, 0) % 4 != 1
    wild = np.where(mask[..., None], x, np.array(np.inf, "float32"))
    for family in FAMILIES:
        layer = make(family)
        layer.build(x.shape)
        set_weights(layer)
        wanted, result = (to_numpy(layer(y, mask=mask)) for y in (x, wild))
        assert error(result[mask], wanted[mask]) < 1e-6, family


@pytest.mark.parametrize("layer_class", [GatedAttentionUnit, MixedChunkAttention])
def test_gate_closes_before_float16_rounds(layer_class):
    """The attended sum may be beyond float16 where what leaves the gate is not."""
    options = {
        GatedAttentionUnit: dict(normalization_length=1),
        MixedChunkAttention: dict(scale_scores=False),
    }[layer_class]
    x, results = normal(1, 64, 8), []
    for policy in ("float32", "mixed_float16"):
        layer = layer_class(key_dim=8, causal=True, dtype=policy, **options)
        layer.build(x.shape)
        set_weights(layer)
        layer.gate_dense.bias.assign(np.full(16, -7.0))
        layer.scale_offset.gamma.assign(np.full(layer.scale_offset.gamma.shape, 9.0))
        results.append(to_numpy(layer(x)))
    assert 100 < np.abs(results[0]).max() < 3e4
    assert error(results[1], results[0]) < 2e-2


@pytest.mark.parametrize("causal", [False, True])
def test_every_distance_learns_from_the_start(causal):
    """A weight that starts where squared relu is flat would stay where it is."""
    layer = MixedChunkAttention(key_dim=8, chunk_size=16, causal=causal)
    x = normal(2, 64, WIDTH)
    layer.build(x.shape)
    _, found = gradients(layer, normal(*x.shape, seed=1), x)
    paths = [weight.path for weight in layer.trainable_variables]
    (table,) = [g for g, path in zip(found, paths, strict=True) if "table" in path]
    assert len(table) == (16 if causal else 31)
    assert (np.abs(table) > 0).all()


def test_position_bias_in_half_precision():
    scores = normal(2, 5, 9)
    exact = RelativePositionBias("rotary")
    exact.build(scores.shape)
    half = RelativePositionBias("rotary", dtype="mixed_float16")
    half.build(scores.shape)
    for layer in (exact, half):
        set_weights(layer)
    result = half(scores)
    assert keras.backend.standardize_dtype(result.dtype) == "float16"
    assert error(result, to_numpy(exact(scores))) < 2e-3


def test_small_layers_equal_loops():
    x = normal(2, 3, WIDTH)
    layer = ScaleNorm(epsilon=0.5)
    layer.build(x.shape)
    layer.scale.assign(2.0)
    wanted = 2 * x / np.sqrt((x.astype("float64") ** 2).mean(-1, keepdims=True) + 0.5)
    assert error(layer(x), wanted) < 1e-6
    layer = ScaleOffset(2)
    layer.build(x.shape)
    set_weights(layer)
    gamma, beta = to_numpy(layer.gamma), to_numpy(layer.beta)
    for i, part in enumerate(layer(x)):
        assert error(part, x * gamma[i] + beta[i]) < 1e-6


def test_flow_attention_of_three_inputs_equals_loops():
    """Query, value and key of different widths and lengths, masked."""
    layer = FlowAttention(2, 3, value_dim=4, output_dim=5)
    query, value, key = normal(2, 5, 6), normal(2, 7, 8, seed=1), normal(2, 7, 9)
    layer.build(query.shape, value.shape, key.shape)
    set_weights(layer)
    masks = [np.random.default_rng(seed).random((2, 7)) < 0.8 for seed in (1, 2)]
    queries = np.random.default_rng(3).random((2, 5)) < 0.8
    result = layer(
        query,
        value,
        key,
        query_mask=queries,
        value_mask=masks[0],
        key_mask=masks[1],
    )
    weights = weights_of(layer)
    heads = [
        dense(x, weights, f"{name}_dense").reshape(2, -1, 2, size).swapaxes(1, 2)
        for name, x, size in (
            ("query", query, 3),
            ("key", key, 3),
            ("value", value, 4),
        )
    ]
    attended, _ = flow_loops(*heads, queries, masks[0] & masks[1])
    wanted = dense(attended.swapaxes(1, 2).reshape(2, 5, 8), weights, "output_dense")
    assert error(to_numpy(result)[queries], wanted[queries]) < 1e-5


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (ScaleNorm(), [(2, 9, 6)]),
        (ScaleOffset(3), [(2, 9, 6)]),
        (RelativePositionBias(), [(2, 9, 9)]),
        (GatedAttentionUnit(key_dim=4), [(2, 9, 6)]),
        (MixedChunkAttention(key_dim=4), [(2, 9, 6)]),
        (FlowAttention(2, 3), [(2, 9, 6), (2, 5, 4)]),
        (FlowAttention(2, 3, output_dim=7), [(2, 9, 6), (2, 5, 4), (2, 5, 3)]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_output_shape(layer, shapes):
    outputs = layer(*(normal(*shape) for shape in shapes))
    found = layer.compute_output_shape(*shapes)
    if isinstance(layer, ScaleOffset):
        assert [tuple(x.shape) for x in outputs] == [tuple(x) for x in found]
    else:
        assert tuple(outputs.shape) == tuple(found)


def test_small_layers_keep_the_mask():
    x = keras.layers.Embedding(11, WIDTH, mask_zero=True)(np.array([[1, 2, 0]]))
    get_mask = keras.src.backend.get_keras_mask
    assert to_numpy(get_mask(ScaleNorm()(x))).tolist() == [[1, 1, 0]]
    for part in ScaleOffset(2)(x):
        assert to_numpy(get_mask(part)).tolist() == [[1, 1, 0]]


def test_dropout_acts_before_the_output_projection():
    for layer_class, options in FAMILIES.values():
        layer, x = layer_class(**options, dropout=0.9), normal(2, 9, WIDTH)
        layer.build(x.shape)
        set_weights(layer)
        assert (to_numpy(layer(x)) == to_numpy(layer(x, training=False))).all()
        dropped = to_numpy(layer(x, training=True))
        assert error(dropped, to_numpy(layer(x))) > 1e-2
        assert np.abs(dropped).min() > 0  # the projection mixes what is left


@each_family
@pytest.mark.parametrize("policy", ["float16", "bfloat16", "float64"])
def test_whole_policies(family, policy):
    """Weights in half or double precision too, not only what is computed."""
    exact = make(family)
    layer_class, options = FAMILIES[family]
    layer, x = layer_class(**options, dtype=policy), normal(2, 9, WIDTH)
    for each in (exact, layer):
        each.build(x.shape)
        set_weights(each)
    result = layer(x)
    expected = "float32" if BACKEND == "jax" and policy == "float64" else policy
    assert keras.backend.standardize_dtype(result.dtype) == expected
    assert error(result, to_numpy(exact(x))) < 3e-2


def test_mask_passed_on_is_the_and():
    x = keras.layers.Embedding(11, WIDTH, mask_zero=True)(np.array([[1, 2, 3, 0, 0]]))
    layer = make("full-gau")
    y = layer(x, mask=keras.ops.convert_to_tensor([[1.0, 0.0, 1.0, 1.0, 1.0]]))
    mask = keras.src.backend.get_keras_mask(y)
    assert keras.backend.standardize_dtype(mask.dtype) == "bool"
    assert to_numpy(mask).tolist() == [[1, 0, 1, 0, 0]]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_functional_model_keeps_its_policy(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    model = residual_model("causal-mixed")
    x = normal(2, 9, 8)
    result = model(x)
    model.save(tmp_path / "model.keras")
    keras.config.set_dtype_policy("float32")
    again = keras.saving.load_model(tmp_path / "model.keras")
    dtype = policy.removeprefix("mixed_")
    dtype = "float32" if BACKEND == "jax" and dtype == "float64" else dtype
    assert keras.backend.standardize_dtype(again(x).dtype) == dtype
    assert error(again(x), to_numpy(result)) < 1e-6
