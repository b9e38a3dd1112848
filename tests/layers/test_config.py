"""What holds for the constructor and the configuration of every layer."""

import inspect

import keras
import numpy as np
import pytest

import keras_flash
from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention
from keras_flash import RelativePositionBias
from keras_flash import ScaleNorm
from keras_flash import ScaleOffset
from keras_flash import SinePositionEncoding
from tests.helpers import normal
from tests.helpers import to_numpy


@keras.saving.register_keras_serializable(package="keras_flash_tests")
def weird_start(shape, dtype=None):
    """A plain function as an initializer."""
    return keras.ops.full(shape, 0.25, dtype=dtype)


@keras.saving.register_keras_serializable(package="keras_flash_tests")
def cubed(x):
    return x**3


GATED = dict(
    key_dim=6,
    expansion_factor=1.5,
    causal=True,
    attention_activation="laplace",
    relative_position_bias="t5",
    use_rotary=False,
    activation="gelu",
    use_bias=False,
    dropout=0.25,
    kernel_initializer=keras.initializers.HeNormal(seed=3),
    bias_initializer="ones",
    remat=True,
)
# Every constructor argument of every layer, at another value than its default.
SETTINGS = {
    ScaleOffset: dict(num_outputs=3, gamma_initializer="ones", beta_initializer="ones"),
    ScaleNorm: dict(epsilon=0.5),
    SinePositionEncoding: {},
    RelativePositionBias: dict(
        kind="t5",
        max_length=512,
        num_buckets=8,
        max_distance=20,
        bidirectional=False,
        initializer="ones",
    ),
    GatedAttentionUnit: dict(GATED, normalization_length=11),
    MixedChunkAttention: dict(
        GATED,
        chunk_size=5,
        branches="local",
        scale_scores=False,
        global_normalization="mean",
    ),
    FlowAttention: dict(
        num_heads=3,
        key_dim=4,
        value_dim=5,
        output_dim=7,
        causal=True,
        feature_map="elu",
        competition="sigmoid",
        allocation=None,
        competition_clip=0.1,
        epsilon=1e-3,
        use_bias=False,
        dropout=0.25,
        kernel_initializer="he_normal",
        bias_initializer="ones",
        remat=True,
    ),
}
LAYERS = list(SETTINGS)


def names(values):
    return [value.__name__ for value in values]


@pytest.mark.parametrize("layer_class", LAYERS, ids=names(LAYERS))
def test_config_holds_every_argument(layer_class):
    arguments = set(inspect.signature(layer_class.__init__).parameters)
    arguments -= {"self", "kwargs"}
    assert arguments == set(SETTINGS[layer_class])
    config = layer_class(**SETTINGS[layer_class]).get_config()
    assert arguments <= set(config)
    again = layer_class.from_config(config).get_config()
    assert again == config
    for name, value in SETTINGS[layer_class].items():
        if name.endswith("initializer"):
            value = keras.initializers.serialize(keras.initializers.get(value))
        assert config[name] == value


def test_every_public_layer_is_tested_here():
    public = keras_flash.layers.__all__
    assert {getattr(keras_flash, name) for name in public} == set(LAYERS)


@pytest.mark.parametrize(
    "value",
    [
        "relu_squared",
        "laplace",
        "softmax",
        "sigmoid",
        keras.activations.softmax,
        keras.ops.softmax,
        keras.activations.sigmoid,
        cubed,
    ],
    ids=lambda value: getattr(value, "__name__", f"name_{value}"),
)
def test_attention_activation_round_trips(value):
    layer = GatedAttentionUnit(key_dim=4, attention_activation=value)
    again = GatedAttentionUnit.from_config(layer.get_config())
    assert again.attention_activation == layer.attention_activation
    assert again.get_config() == layer.get_config()


@pytest.mark.parametrize(
    "value",
    ["he_normal", keras.initializers.Orthogonal(gain=2.0, seed=1), weird_start],
    ids=["name", "object", "function"],
)
@pytest.mark.parametrize("layer_class", [GatedAttentionUnit, MixedChunkAttention])
def test_kernel_initializer_forms(layer_class, value):
    layer = layer_class(key_dim=4, kernel_initializer=value)
    layer.build((None, None, 6))
    if value is weird_start:
        assert (to_numpy(layer.gate_dense.kernel) == 0.25).all()
    again = layer_class.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    again.build((None, None, 6))
    assert not isinstance(again.kernel_initializer, (str, dict))


@pytest.mark.parametrize("layer_class", [GatedAttentionUnit, MixedChunkAttention])
def test_no_two_weights_start_equal(layer_class):
    """One initializer, seeded or not, must not give u and v the same start."""
    for seed in (None, 5):
        initializer = keras.initializers.RandomNormal(seed=seed)
        layer = layer_class(key_dim=12, kernel_initializer=initializer)
        layer.build((None, None, 6))
        gate, value, base = [
            to_numpy(getattr(layer, f"{name}_dense").kernel)
            for name in ("gate", "value", "base")
        ]
        assert np.abs(gate - value).max() > 1e-3
        assert np.abs(gate - base).max() > 1e-3
    stateful = keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(3))
    layer = layer_class(key_dim=12, kernel_initializer=stateful)
    layer.build((None, None, 6))
    gate, value = layer.gate_dense.kernel, layer.value_dense.kernel
    assert np.abs(to_numpy(gate) - to_numpy(value)).max() > 1e-3
    layer = RelativePositionBias("rotary", initializer=initializer)
    layer.build()
    assert (
        np.abs(to_numpy(layer.query_vector) - to_numpy(layer.key_vector)).max() > 1e-3
    )
    layer = FlowAttention(2, 3, kernel_initializer=initializer)
    layer.build((None, None, 6), (None, None, 6))
    kernels = [layer.query_dense, layer.key_dense, layer.value_dense]
    assert len({to_numpy(dense.kernel).tobytes() for dense in kernels}) == 3


def test_attribute_names():
    layer = MixedChunkAttention(key_dim=4)
    layer.build((None, None, 6))
    paths = [
        "/".join(w.path.split("/")[-2:]) for w in layer.weights if "seed" not in w.path
    ]
    assert paths == [
        "gate_dense/kernel",
        "gate_dense/bias",
        "value_dense/kernel",
        "value_dense/bias",
        "base_dense/kernel",
        "base_dense/bias",
        "output_dense/kernel",
        "output_dense/bias",
        "scale_offset/gamma",
        "scale_offset/beta",
        "position_bias/table",
    ]
    assert tuple(layer.scale_offset.gamma.shape) == (4, 4)
    layer = FlowAttention(2, 3)
    layer.build((None, None, 6), (None, None, 6))
    dense = ["query_dense", "key_dense", "value_dense", "output_dense"]
    assert [w.path.split("/")[-2] for w in layer.weights[::2]][:4] == dense


@pytest.mark.parametrize("layer_class", LAYERS, ids=names(LAYERS))
def test_build_leaves_the_config_alone(layer_class):
    layer = layer_class(**SETTINGS[layer_class])
    before = layer.get_config()
    shape = (None, 7, 6)
    layer.build(shape, shape) if layer_class is FlowAttention else layer.build(shape)
    assert layer.get_config() == before


BAD = [
    (ScaleOffset, dict(num_outputs=0), "`num_outputs` must be a positive integer"),
    (ScaleNorm, dict(epsilon=0), "`epsilon` must be a positive number"),
    (RelativePositionBias, dict(kind="alibi"), "`kind` must be one of 'auto', "),
    (RelativePositionBias, dict(max_length=2.5), "`max_length` must be a positive int"),
    (
        RelativePositionBias,
        dict(kind="t5", max_length=9),
        '`max_length` has no meaning with kind="t5"',
    ),
    (
        RelativePositionBias,
        dict(kind="rotary", max_length=9),
        '`max_length` has no meaning with kind="rotary"',
    ),
    (
        RelativePositionBias,
        dict(kind="t5", num_buckets=2),
        "`num_buckets` must be at least 4",
    ),
    (
        RelativePositionBias,
        dict(kind="t5", max_distance=8),
        "`max_distance` must be more than the",
    ),
    (RelativePositionBias, dict(bidirectional=1), "`bidirectional` must be True or"),
    (RelativePositionBias, dict(num_buckets=8), "`num_buckets` has no meaning with"),
    (
        RelativePositionBias,
        dict(kind="rotary", max_distance=8),
        "`max_distance` has no meaning with kind=",
    ),
    (FlowAttention, dict(num_heads=0), "`num_heads` must be a positive integer"),
    (FlowAttention, dict(key_dim=None), "`key_dim` must be a positive integer"),
    (FlowAttention, dict(value_dim=0), "`value_dim` must be a positive integer"),
    (FlowAttention, dict(output_dim=-1), "`output_dim` must be a positive integer"),
    (FlowAttention, dict(feature_map="exp"), "`feature_map` must be one of 'sigmoid'"),
    (FlowAttention, dict(competition="elu"), "`competition` must be one of 'softmax'"),
    (FlowAttention, dict(allocation="elu"), "`allocation` must be one of 'sigmoid'"),
    (FlowAttention, dict(allocation="softmax", causal=True), "`allocation` must be"),
    (FlowAttention, dict(competition_clip=0), "`competition_clip` must be a positive"),
    (
        FlowAttention,
        dict(competition=None, competition_clip=1.0),
        "`competition_clip` has no meaning without competition",
    ),
    (FlowAttention, dict(epsilon=0.0), "`epsilon` must be a positive number"),
    (FlowAttention, dict(dropout=1.0), r"`dropout` must be a number in \[0, 1\)"),
    (
        GatedAttentionUnit,
        dict(normalization_length="seen"),
        '`normalization_length` must be "visible" or a positive integer',
    ),
    (
        GatedAttentionUnit,
        dict(normalization_length=512, attention_activation="softmax"),
        "`normalization_length` has no meaning under softmax",
    ),
    (
        MixedChunkAttention,
        dict(chunk_size=0),
        "`chunk_size` must be a positive integer",
    ),
    (MixedChunkAttention, dict(branches="none"), "`branches` must be one of 'both'"),
    (MixedChunkAttention, dict(scale_scores=None), "`scale_scores` must be True or"),
    (
        MixedChunkAttention,
        dict(global_normalization="max"),
        "`global_normalization` must be one of 'mean'",
    ),
    (
        MixedChunkAttention,
        dict(scale_scores=False, attention_activation="softmax"),
        "`scale_scores` has no meaning under softmax",
    ),
    (
        MixedChunkAttention,
        dict(branches="local", global_normalization="sum"),
        '`global_normalization` has no meaning with branches="local"',
    ),
    (
        MixedChunkAttention,
        dict(branches="global", scale_scores=False),
        '`scale_scores` has no meaning with branches="global"',
    ),
    (
        MixedChunkAttention,
        dict(branches="global", attention_activation="laplace"),
        '`attention_activation` has no meaning with branches="global"',
    ),
    (
        MixedChunkAttention,
        dict(branches="global", relative_position_bias="t5"),
        '`relative_position_bias` has no meaning with branches="global"',
    ),
]
BAD += [
    (layer_class, option, text)
    for layer_class in (GatedAttentionUnit, MixedChunkAttention)
    for option, text in [
        (dict(key_dim=0), "`key_dim` must be a positive integer"),
        (dict(key_dim=7), "`key_dim` must be even where `use_rotary` is True"),
        (dict(expansion_factor=0), "`expansion_factor` must be a positive number"),
        (dict(causal="yes"), "`causal` must be True or False"),
        (dict(attention_activation="relu2"), '`attention_activation` must be "relu_sq'),
        (dict(attention_activation=keras.ops.sparsemax), "`attention_activation` must"),
        (dict(attention_activation="sparsemax"), '`attention_activation` must be "rel'),
        (dict(attention_activation=None), '`attention_activation` must be "relu_sq'),
        (dict(relative_position_bias="alibi"), "`relative_position_bias` must be one"),
        (dict(use_rotary=1), "`use_rotary` must be True or False"),
        (dict(use_bias="no"), "`use_bias` must be True or False"),
        (dict(dropout=-0.1), r"`dropout` must be a number in \[0, 1\)"),
    ]
]


@pytest.mark.parametrize(("layer_class", "options", "text"), BAD)
def test_bad_arguments(layer_class, options, text):
    if layer_class is FlowAttention:
        options = {"num_heads": 2, "key_dim": 3, **options}
    last = list(options)[-1]
    with pytest.raises(ValueError, match=f"^{text}.*Received: "):
        layer_class(**options)
    assert last in inspect.signature(layer_class.__init__).parameters


@pytest.mark.parametrize("layer_class", [GatedAttentionUnit, MixedChunkAttention])
@pytest.mark.parametrize("symbolic", [False, True], ids=["eager", "symbolic"])
def test_bad_inputs(layer_class, symbolic):
    layer = layer_class(key_dim=4)

    def tensor(*shape, dtype="float32"):
        if symbolic:
            return keras.KerasTensor(shape, dtype=dtype)
        return np.ones(shape, dtype)

    x = tensor(2, 5, 6)
    with pytest.raises(ValueError, match=r"`inputs` must have shape \(batch, length, "):
        layer_class(key_dim=4)(tensor(2, 6))
    with pytest.raises(ValueError, match="`inputs` must have at least one token"):
        layer_class(key_dim=4)(tensor(2, 0, 6))
    for shape in ((5,), (2, 5, 5), (2, 1, 1, 5), (2, 4)):
        with pytest.raises(
            ValueError, match=r"`mask` must have shape \(batch, length\)"
        ):
            layer(x, mask=tensor(*shape, dtype="bool"))
        with pytest.raises(ValueError, match="`segment_ids` must have shape"):
            layer(x, segment_ids=tensor(*shape, dtype="int32"))
    with pytest.raises(ValueError, match="`segment_ids` must be integers"):
        layer(x, segment_ids=tensor(2, 5))
    with pytest.raises(ValueError, match="`expansion_factor` must leave at least one"):
        layer_class(key_dim=4, expansion_factor=0.1)(x)


@pytest.mark.parametrize("symbolic", [False, True], ids=["eager", "symbolic"])
def test_bad_flow_inputs(symbolic):
    def tensor(*shape, dtype="float32"):
        if symbolic:
            return keras.KerasTensor(shape, dtype=dtype)
        return np.ones(shape, dtype)

    layer, x = FlowAttention(2, 3), tensor(2, 5, 6)
    with pytest.raises(ValueError, match="`query` must have shape"):
        FlowAttention(2, 3)(tensor(2, 6), x)
    with pytest.raises(ValueError, match="`value` must have shape"):
        FlowAttention(2, 3)(x, tensor(2, 6))
    with pytest.raises(ValueError, match="`query` and `value` must have one batch"):
        FlowAttention(2, 3)(x, tensor(3, 5, 6))
    with pytest.raises(ValueError, match="`key` and `value` must have one length"):
        FlowAttention(2, 3)(x, x, tensor(2, 4, 6))
    causal = FlowAttention(2, 3, causal=True)
    with pytest.raises(ValueError, match="`query` and `value` must have one length wh"):
        causal(x, tensor(2, 4, 6))
    for name in ("query_mask", "value_mask", "key_mask"):
        with pytest.raises(ValueError, match=f"`{name}` must have shape"):
            layer(x, x, x, **{name: tensor(2, 5, 1, dtype="bool")})


def test_bias_before_build():
    with pytest.raises(ValueError, match="must be built before its bias"):
        RelativePositionBias().bias(np.arange(3), np.arange(3))


# Where each option has an effect: what stands beside it.
BESIDE = {
    ScaleOffset: {},
    ScaleNorm: {},
    RelativePositionBias: dict(kind="t5", num_buckets=10),
    GatedAttentionUnit: dict(key_dim=4, attention_activation="sigmoid"),
    MixedChunkAttention: dict(key_dim=4, attention_activation="sigmoid", chunk_size=4),
    FlowAttention: dict(num_heads=2, key_dim=2),
}
BESIDE_ONE = {
    (RelativePositionBias, "kind"): {},
    (RelativePositionBias, "max_length"): dict(kind="toeplitz"),
}


@pytest.mark.parametrize(
    ("layer_class", "name"),
    [
        (layer_class, name)
        for layer_class in LAYERS
        for name in SETTINGS[layer_class]
        if name != "remat"  # must not: see test_remat
    ],
)
def test_options_change_the_result(layer_class, name):
    """An option that is accepted and never read is a fault."""
    base = BESIDE_ONE.get((layer_class, name), BESIDE[layer_class])
    value = SETTINGS[layer_class][name]
    if name == "global_normalization":  # stands at its default for branches="local"
        value = "sum"
    if name == "max_length":  # and this one for kind="t5"
        value = 9
    assert summary(layer_class, base) == summary(layer_class, base)
    assert summary(layer_class, {**base, name: value}) != summary(layer_class, base)


def summary(layer_class, options):
    """Numbers that an option must change: outputs, or weights at the start."""
    keras.utils.set_random_seed(0)
    layer, x = layer_class(**options), normal(2, 40, 6)
    inputs = (x, x) if layer_class is FlowAttention else (x,)
    outputs = keras.tree.flatten(layer(*inputs, training=True))
    return [to_numpy(x).tobytes() for x in outputs + layer.weights]
