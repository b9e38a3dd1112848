"""The Flowformer models against loops in NumPy, their options, their checks."""

import inspect

import keras
import numpy as np
import pytest

from keras_flash import FlowformerClassifier
from keras_flash import FlowformerDecisionModel
from keras_flash import FlowformerImageClassifier
from keras_flash.models.blocks import make_attention
from keras_flash.models.blocks import residual_block
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import run
from tests.helpers import set_weights
from tests.helpers import to_numpy
from tests.layers.test_small_layers import sines
from tests.reference import flowformer
from tests.reference.layers import dense

SIZES = dict(num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=12)
SERIES = dict(SIZES, num_classes=3, input_dim=5)
TOKENS = dict(SIZES, num_classes=3, vocabulary_size=7)
LENGTH, MAX_LENGTH = 6, 9
IMAGES = dict(
    num_classes=3,
    image_size=(8, 16),
    num_channels=2,
    num_layers=(2, 1),
    hidden_dims=(4, 6),
    num_heads=2,
    patch_size=2,
)
POOLINGS = [
    dict(pooling="mean"),
    dict(pooling="mean", positions=None),
    dict(pooling="cls", norm_first=False),
    dict(pooling="cls", positions="learned", max_length=MAX_LENGTH),
    dict(
        pooling="flatten",
        positions="learned",
        norm_first=False,
        max_length=MAX_LENGTH,
    ),
    dict(pooling="flatten", max_length=MAX_LENGTH),
]
each_pooling = pytest.mark.parametrize("options", POOLINGS)


each_attention = pytest.mark.parametrize(
    "attention", ["flow_attention", "mixed_chunk_attention"]
)


def with_attention(options, attention):
    if attention == "mixed_chunk_attention":
        options = dict(options, num_heads=None)
    return dict(options, attention=attention)


def weights_by_path(model):
    return {
        weight.path.removeprefix(f"{model.name}/"): to_numpy(weight)
        for weight in model.weights
        if "seed" not in weight.path
    }


def filled(model, scale=0.3):
    set_weights(model, scale=scale)
    return model


def series(length=MAX_LENGTH, tokens=False):
    """Rows of `LENGTH` and of fewer real tokens, and one of `length`."""
    mask = np.zeros((3, length), "int32")
    for row, size in zip(mask, (LENGTH, 3, length)):
        row[:size] = 1
    if tokens:
        x = np.random.default_rng(0).integers(0, 7, (3, length)).astype("int32")
    else:
        x = normal(3, length, 5)
    return {"inputs": x, "padding_mask": mask}


def classify(weights, x, options, attention=None):
    """What `FlowformerClassifier` is to give."""
    mask = x["padding_mask"].astype(bool)
    if x["inputs"].ndim == 3:
        y = dense(x["inputs"] * mask[..., None], weights, "embedding")
    else:
        y = weights["embedding/embeddings"][x["inputs"]]
    pooling, norm_first = options["pooling"], options.get("norm_first", True)
    if pooling == "cls":
        token = weights["class_token/embedding"]
        y = np.concatenate([np.tile(token, (len(y), 1, 1)), y], axis=1)
        mask = np.concatenate([mask[:, :1] | True, mask], axis=1)
    positions = options.get("positions", "sinusoidal")
    if positions == "learned":
        y = y + weights["positions/embeddings"][: y.shape[1]]
    elif positions == "sinusoidal":
        y = y + sines(range(y.shape[1]), 8)
    for i in range(2):
        y = flowformer.block(
            y,
            weights,
            f"block_{i}",
            mask,
            norm_first,
            num_heads=2,
            **(attention or {}),
        )
    if norm_first:
        y = flowformer.layer_norm(y, weights, "final_norm")
    if pooling == "mean":
        y = np.stack([row[real].mean(axis=0) for row, real in zip(y, mask)])
    elif pooling == "cls":
        y = y[:, 0]
    else:
        y = (flowformer.gelu(y) * mask[..., None]).reshape(len(y), -1)
    return dense(y, weights, "logits")


@each_pooling
@pytest.mark.parametrize("tokens", [False, True])
def test_classifier_equals_loops(options, tokens):
    model = filled(FlowformerClassifier(**(TOKENS if tokens else SERIES), **options))
    x = series(tokens=tokens)
    wanted = classify(weights_by_path(model), x, options)
    assert error(run(model, x), wanted) < 1e-5


@each_pooling
@each_attention
def test_what_is_masked_changes_nothing(attention, options):
    options = with_attention(dict(SERIES, **options), attention)
    model, x = filled(FlowformerClassifier(**options)), series()
    wanted = run(model, x)
    wild = x["inputs"].copy()
    wild[x["padding_mask"] == 0] = np.nan
    assert error(run(model, dict(x, inputs=wild)), wanted) < 1e-6
    if options["pooling"] != "flatten":  # by itself, a row is as long as it is
        short = {name: array[:1, :LENGTH] for name, array in x.items()}
        assert error(run(model, short), wanted[:1]) < 1e-5
    model.compile(keras.optimizers.SGD(0.1), "mse")  # and nothing enters a gradient
    model.fit(dict(x, inputs=wild), np.eye(3, dtype="float32"), verbose=0)
    assert all(np.isfinite(to_numpy(weight)).all() for weight in model.weights)


@pytest.mark.parametrize(
    "ablation",
    [
        dict(competition=None),
        dict(allocation=None),
        dict(feature_map="elu"),
        dict(feature_map="relu"),
        dict(competition="sigmoid", allocation="softmax"),
        dict(competition_clip=0.1),
    ],
)
def test_ablations_are_options_of_the_attention(ablation):
    options = POOLINGS[0]
    model = filled(FlowformerClassifier(**SERIES, **options), scale=0.6)
    other = FlowformerClassifier(**SERIES, **options, attention_options=ablation)
    other.set_weights(model.get_weights())
    result = run(other, series())
    weights = weights_by_path(model)
    wanted = classify(weights, series(), options, ablation)
    assert error(result, wanted) < 1e-5
    assert error(run(model, series()), wanted) > 1e-5
    for name in ("images", "decisions"):
        if name == "decisions" and ablation.get("allocation") == "softmax":
            continue  # not causal
        model_class, options, inputs = MODELS[name]
        model = filled(model_class(**options), scale=0.6)
        other = model_class(**options, attention_options=ablation)
        other.set_weights(model.get_weights())
        assert error(run(other, inputs()), run(model, inputs())) > 1e-5


def downsample(x, weights, name, side):
    """`side` x `side` places side by side, and a dense layer."""
    b, height, width, c = x.shape
    x = x.reshape(b, height // side, side, width // side, side, c)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, height // side, width // side, -1)
    kernel = weights[f"{name}/kernel"]
    return x @ kernel.reshape(-1, kernel.shape[-1]) + weights[f"{name}/bias"]


def test_image_classifier_equals_loops():
    model, x = filled(FlowformerImageClassifier(**IMAGES)), normal(2, 8, 16, 2)
    weights = weights_by_path(model)
    y = downsample(x.astype("float64"), weights, "patch_embedding", 2).reshape(2, 32, 4)
    y = y + weights["positions/embeddings"]
    for i in range(2):
        y = flowformer.block(y, weights, f"stage_0_block_{i}", num_heads=2)
    y = y.reshape(2, 4, 8, 4)
    y = downsample(y, weights, "stage_1_downsampling", 2).reshape(2, 8, 6)
    y = flowformer.block(y, weights, "stage_1_block_0", num_heads=2)
    y = flowformer.layer_norm(y, weights, "final_norm").mean(axis=1)
    assert error(run(model, x), dense(y, weights, "logits")) < 1e-5


def multiply_adds(model):
    """Of one image: each dense layer and convolution, and k^T v and q (k^T v)."""
    total = 0
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D):
            total += int(np.prod(layer.kernel.shape) * np.prod(layer.output.shape[1:3]))
        elif isinstance(layer, keras.layers.Dense):
            places = int(np.prod(layer.output.shape[1:-1], dtype=int))
            total += int(np.prod(layer.kernel.shape)) * places
        elif hasattr(layer, "num_heads"):
            _, tokens, width = layer.output.shape
            projections = sum(
                int(np.prod(dense.kernel.shape))
                for dense in layer._flatten_layers()
                if isinstance(dense, keras.layers.Dense)
            )
            total += tokens * (projections + 2 * width * layer.key_dim)
    return total


def test_image_classifier_is_of_the_authors_size():
    model = FlowformerImageClassifier(num_classes=1000)
    assert abs(model.count_params() / 43.3e6 - 1) < 0.01
    assert abs(multiply_adds(model) / 6.87e9 - 1) < 0.01


def test_drop_path_leaves_out_samples():
    """A branch is there, twice, or not, for a whole sample."""
    x = keras.Input((5, 8))
    attention = make_attention(
        "flow_attention", {}, 2, 8, causal=False, dropout=0.0, dtype=None, name="a"
    )
    y = residual_block(x, None, attention, 12, drop_path=0.5)
    model = filled(keras.Model(x, y))
    dense = model.get_layer("block_output_dense")
    for weight in dense.weights:  # the attention's branch alone
        weight.assign(0 * weight)
    x = normal(32, 5, 8)
    branch, kept = run(model, x) - x, run(model, x, training=True) - x
    shares = (kept * branch).sum(axis=(1, 2)) / (branch**2).sum(axis=(1, 2))
    assert set(np.round(shares, 3)) == {0.0, 2.0}
    assert error(kept, shares[:, None, None] * branch) < 1e-5
    rates = [
        layer.rate
        for layer in FlowformerImageClassifier(**IMAGES, drop_path=0.2).layers
        if layer.name.endswith("attention_drop_path")
    ]
    assert np.allclose(rates, [0.1, 0.2])


def episodes(num_actions=3, length=5):
    generator = np.random.default_rng(0)
    x = dict(
        returns=normal(2, length),
        states=normal(2, length, 4, seed=1),
        actions=generator.integers(0, 3, (2, length)).astype("int32"),
        timesteps=np.tile(np.arange(length, dtype="int32"), (2, 1)),
        padding_mask=np.ones((2, length), "int32"),
    )
    if num_actions is None:
        x["actions"] = np.tanh(normal(2, length, 2, seed=2))
    return x


@pytest.mark.parametrize("num_actions", [3, None])
def test_decisions_equal_loops(num_actions):
    actions = dict(num_actions=3) if num_actions else dict(action_dim=2)
    model = filled(FlowformerDecisionModel(4, **actions, **SIZES))
    x = episodes(num_actions)
    weights = weights_by_path(model)
    time = weights["timestep_embedding/embeddings"][x["timesteps"]]
    action = x["actions"]
    tokens = [
        dense(x["returns"][..., None], weights, "return_embedding"),
        dense(x["states"], weights, "state_embedding"),
        weights["action_embedding/embeddings"][action]
        if num_actions
        else dense(action, weights, "action_embedding"),
    ]
    y = np.stack([token + time for token in tokens], axis=2).reshape(2, 15, 8)
    inner = {name.removeprefix("trunk/"): value for name, value in weights.items()}
    y = flowformer.layer_norm(y, inner, "embedding_norm")
    for i in range(2):
        y = flowformer.block(
            y,
            inner,
            f"block_{i}",
            activation=lambda z: np.maximum(z, 0),
            num_heads=2,
            causal=True,
        )
    y = flowformer.layer_norm(y, inner, "final_norm").reshape(2, 5, 3, 8)[:, :, 1]
    wanted = dense(y, weights, "logits" if num_actions else "output_actions")
    wanted = wanted if num_actions else np.tanh(wanted)
    assert error(run(model, x), wanted) < 1e-5


@each_attention
@pytest.mark.parametrize("num_actions", [3, None])
def test_play_is_the_parallel_pass(attention, num_actions):
    actions = dict(num_actions=3) if num_actions else dict(action_dim=2)
    options = with_attention(SIZES, attention)
    model = filled(FlowformerDecisionModel(4, **actions, **options))
    x = episodes(num_actions)
    whole = run(model, x)
    state, taken = model.get_initial_state(2), None
    for step in range(5):
        made, state = model.act(
            x["returns"][:, step],
            x["states"][:, step],
            x["timesteps"][:, step],
            state,
            taken,
        )
        assert error(made, whole[:, step]) < 2e-5
        taken = x["actions"][:, step]


def test_an_action_sees_neither_itself_nor_what_follows():
    model = filled(FlowformerDecisionModel(4, 3, **SIZES))
    x = episodes()
    whole, changed = run(model, x), {name: a.copy() for name, a in x.items()}
    changed["actions"][:, 2:] = (changed["actions"][:, 2:] + 1) % 3
    for name in ("returns", "states"):
        changed[name][:, 3:] += 1.0
    result = run(model, changed)
    assert (result[:, :3] == whole[:, :3]).all()
    assert (result[:, 3:] != whole[:, 3:]).any()


@each_attention
def test_steps_that_are_none_change_nothing(attention):
    """In front, where a causal model would see them, and whatever they hold."""
    model = filled(FlowformerDecisionModel(4, 3, **with_attention(SIZES, attention)))
    x = episodes()
    late = {name: array[:, 2:] for name, array in x.items()}
    x["padding_mask"][:, :2] = 0
    for name, value in dict(states=np.nan, returns=np.nan, actions=99).items():
        x[name][:, :2] = value
    wanted = run(model, late)
    assert error(run(model, x)[:, 2:], wanted) < 1e-5  # one chunk, where there are
    x["padding_mask"] *= 2  # any other than 0 is a real step
    assert error(run(model, x)[:, 2:], wanted) < 1e-5
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    weight = (x["padding_mask"] > 0).astype("float32")
    with pytest.raises(ValueError, match="`y` must be integers from 0 to 2"):
        model.fit(x, x["actions"], sample_weight=weight, verbose=0)
    y = np.where(x["padding_mask"], x["actions"], 0)
    model.fit(x, y, sample_weight=weight, verbose=0)
    assert all(np.isfinite(to_numpy(weight)).all() for weight in model.weights)


def test_act_refuses():
    model = FlowformerDecisionModel(4, 3, **SIZES, max_timesteps=9)
    state, states = model.get_initial_state(2), np.zeros((2, 4))
    for arguments, message in (
        (([1, 1], states[:, :3], [0, 0], state), r"`states` must have shape \(2, 4\)"),
        (([1], states, [0, 0], state), r"`states` must have shape \(1, 4\)"),
        (([1, 1], states, [0], state), r"`timesteps` must have shape \(2,\)"),
        (([1, 1], states, [0, 9], state), r"`timesteps` must be integers from 0 to 8"),
        (([1, 1], states, [4, 4], state, [0]), r"`actions` must have shape \(2,\)"),
        (
            ([1, 1], states, [4, 4], state, [0, 3]),
            r"`actions` must be integers from 0 to 2",
        ),
        (
            ([1, 1], states, [0, 4], state, [0, 0]),
            r"`timesteps - 1` must be .* from 0",
        ),
    ):
        with pytest.raises(ValueError, match=rf"{message}.* Received: "):
            model.act(*arguments)


MODELS = {
    "series": (FlowformerClassifier, SERIES, series),
    "tokens": (FlowformerClassifier, TOKENS, lambda: series(tokens=True)),
    "images": (FlowformerImageClassifier, IMAGES, lambda: normal(3, 8, 16, 2)),
    "decisions": (
        FlowformerDecisionModel,
        dict(SIZES, state_dim=4, num_actions=3),
        episodes,
    ),
}
each_model = pytest.mark.parametrize("name", MODELS)


# Every argument, none as it is by default.
ARGUMENTS = {
    "series": dict(
        max_length=MAX_LENGTH,
        pooling="flatten",
        positions="learned",
        norm_first=False,
        dropout=0.3,
        activation="softmax",
    ),
    "tokens": dict(pooling="cls", positions=None, dropout=0.0, activation="sigmoid"),
    "images": dict(dropout=0.3, drop_path=0.1, activation="softmax"),
    "decisions": dict(num_actions=None, action_dim=2, max_timesteps=9, dropout=0.3),
}


@each_model
def test_configuration_holds_every_argument(name):
    model_class, options, inputs = MODELS[name]
    options = dict(options, **ARGUMENTS[name], attention_options={"epsilon": 1e-3})
    model = filled(model_class(**options, name="mine", trainable=False))
    config = model.get_config()
    names = set(inspect.signature(model_class).parameters) - {"dtype", "kwargs"}
    assert set(config) == names | {"dtype", "name", "trainable"}
    for argument, value in options.items():
        value = list(value) if isinstance(value, tuple) else value
        assert config[argument] == value
    again = model_class.from_config(config)
    assert again.get_config() == config
    again.set_weights(model.get_weights())
    x = episodes(None) if name == "decisions" else inputs()
    assert error(run(again, x), run(model, x)) < 1e-6
    if "activation" in options:
        plain = filled(model_class(**dict(options, activation=None)))
        assert error(run(plain, x), run(model, x)) > 1e-3


@each_model
@each_attention
def test_saved_and_quantized(name, attention, tmp_path):
    model_class, options, inputs = MODELS[name]
    options = dict(
        with_attention(options, attention), attention_options={"use_bias": False}
    )
    model, x = filled(model_class(**options)), inputs()
    config = model_class.from_config(model.get_config()).get_config()
    assert config == model.get_config()
    for argument, value in options.items():
        value = list(value) if isinstance(value, tuple) else value
        assert config[argument] == value
    # One with the options of a mode, the other with its defaults.
    weights_alone = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    single = run(model, x)
    if attention == "flow_attention":
        model.quantize(config=weights_alone)
    else:
        model.quantize("int8")
    assert 1e-6 < error(run(model, x), single) < 0.2
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is model_class
    assert error(run(loaded, x), run(model, x)) < 1e-6


@each_model
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(name, policy):
    model_class, options, inputs = MODELS[name]
    single, x = model_class(**options), inputs()
    half = model_class(**options, dtype=policy)
    half.set_weights(single.get_weights())
    assert half.dtype_policy.name == policy
    assert error(run(half, x), run(single, x)) < 3e-2
    loaded = model_class.from_config(half.get_config())
    assert loaded.dtype_policy.name == policy
    outputs = half(x)
    assert keras.backend.standardize_dtype(outputs.dtype) == policy[6:]


def labels(name):
    return episodes()["actions"] if name == "decisions" else np.array([0, 2, 1])[:3]


@each_model
def test_fit(name):
    model_class, options, inputs = MODELS[name]
    model, x, y = model_class(**options), inputs(), labels(name)
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = model.fit(x, y, epochs=10, verbose=0, validation_data=(x, y))
    losses = history.history["loss"]
    assert losses[-1] < losses[0]


def wrong_data():
    """Model, what is changed in its data, labels or None for good ones, the error."""
    good = series()
    nan, empty = good["inputs"].copy(), good["padding_mask"].copy()
    nan[1, 2, 3] = np.nan
    empty[1] = 0
    ids = series(tokens=True)["inputs"].copy()
    ids[2, 4] = 7
    image = normal(3, 8, 16, 2)
    infinite = image.copy()
    infinite[2, 7, 15, 1] = np.inf
    steps, acts = episodes(), episodes()["actions"].copy()
    acts[1, 1] = 3
    y = np.array([0, 2, 1])
    return {
        "nan": ("series", dict(good, inputs=nan), y, r"`inputs` .* nan at \(1, 2, 3"),
        "empty": ("series", dict(good, padding_mask=empty), y, "first in number 1"),
        "no tokens": (
            "series",
            {k: v[:, :0] for k, v in good.items()},
            y,
            r"`inputs` must have shape \(any, any, 5\)\. .*\(3, 0, 5\)",
        ),
        "no samples": ("series", {k: v[:0] for k, v in good.items()}, y, "at least o"),
        "tensor": (
            "series",
            dict(good, inputs=keras.ops.convert_to_tensor(nan)),
            y,
            r"`inputs` .* nan at \(1, 2, 3",
        ),
        "dict": ("images", {"images": image}, y, "`x` must be an array.* of dict"),
        "width": (
            "series",
            dict(good, inputs=nan[..., :4]),
            y,
            r"`inputs` must have s",
        ),
        "names": ("series", {"x": nan}, y, r"dict of inputs, padding_mask\. .*\['x'\]"),
        "mask": (
            "series",
            dict(good, padding_mask=empty[:, :4]),
            y,
            r"`padding_mask` must have shape \(3, 9\)\. .*\(3, 4\)",
        ),
        "labels": ("series", good, np.array([0, 3, 1]), r"0 to 2\. .*from 0 to 3"),
        "floats": ("series", good, np.array([0, 2.0, 1]), "`y` must be integers"),
        "shares": ("series", good, 5 * np.eye(3), r"`y` must be from 0 to 1\. .* to 5"),
        "few": ("series", good, y[:2], r"each of the 3 samples\. Received: y=2 la"),
        "none": ("series", good, None, r"each of the 3 samples\. Received: y=None"),
        "ids": (
            "tokens",
            dict(good, inputs=ids),
            y,
            r"`inputs` must be integers from 0 to 6\. Received: inputs from 0 to 7",
        ),
        "image": ("images", image[:, :4], y, r"`x` must have shape \(any, 8, 16, 2\)"),
        "inf": ("images", infinite, y, r"inf at \(2, 7, 15, 1\)"),
        "action": (
            "decisions",
            dict(steps, actions=acts),
            steps["actions"],
            r"`actions` must be integers from 0 to 2\. Received: actions from 0 to 3",
        ),
        "answer": ("decisions", steps, acts, r"`y` must be integers from 0 to 2\. "),
        "time": (
            "decisions",
            dict(steps, timesteps=steps["timesteps"] + 996),
            steps["actions"],
            r"`timesteps` must be .* from 0 to 999\. Received: .* from 996 to 1000",
        ),
    }


@pytest.mark.parametrize("case", wrong_data())
def test_fit_refuses_before_it_trains(case):
    name, x, y, message = wrong_data()[case]
    model_class, options, inputs = MODELS[name]
    model = model_class(**options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    before = [to_numpy(weight) for weight in model.weights]
    with pytest.raises(ValueError, match=message):
        model.fit(x, y, verbose=0)
    if y is not None:
        with pytest.raises(ValueError, match=message):
            model.fit(inputs(), labels(name), verbose=0, validation_data=(x, y))
    for weight, value in zip(model.weights, before):
        assert (to_numpy(weight) == value).all()


def test_fit_looks_at_what_keras_takes_for_an_array():
    """A list-like of another library does not keep the rest from being looked at."""

    class Series:
        shape, ndim = (3,), 1

        def __len__(self):
            return 3

        def __array__(self, dtype=None, copy=None):
            return np.array([0, 2, 77])

    model = FlowformerClassifier(**SERIES)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="`y` must be integers from 0 to 2"):
        model.fit(series(), Series(), verbose=0)


def test_flash_has_one_head():
    for make in (
        lambda: FlowformerClassifier(**SERIES, attention="mixed_chunk_attention"),
        lambda: FlowformerImageClassifier(**IMAGES, attention="mixed_chunk_attention"),
        lambda: FlowformerDecisionModel(
            4, 3, num_heads=2, attention="mixed_chunk_attention"
        ),
    ):
        with pytest.raises(ValueError, match=r"`num_heads` must be None .*Received"):
            make()


def test_masked_ids_and_wide_heads():
    """Padding may be any id; queries and keys may be of another width."""
    options = dict(TOKENS, attention_options={"key_dim": 3, "value_dim": 5})
    model, x = filled(FlowformerClassifier(**options)), series(tokens=True)
    wanted = classify(weights_by_path(model), x, POOLINGS[0])
    x["inputs"][x["padding_mask"] == 0] = 99
    x["padding_mask"] *= 2  # any other than 0 is a real token
    assert error(run(model, x), wanted) < 1e-5
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, np.array([0, 2, 1]), verbose=0)


def test_continuous_actions_are_within_one():
    model = FlowformerDecisionModel(4, action_dim=2, **SIZES)
    model.compile("sgd", "mse")
    x = episodes(None)
    y = x["actions"].copy()
    y[1, 3, 1] = 1.5
    with pytest.raises(ValueError, match=r"`y` must be from -1 to 1\. Received"):
        model.fit(x, y, verbose=0)
    model.fit(x, x["actions"], verbose=0)


def test_learned_positions_have_an_end():
    model = FlowformerClassifier(**SERIES, **POOLINGS[3])
    x = series(MAX_LENGTH + 1)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"at most 9 tokens, .*\(3, 10, 5\)"):
        model.fit(x, np.array([0, 1, 2]), verbose=0)
    with pytest.raises(ValueError, match=r"at most 10 positions, .* Received"):
        model(x)


@pytest.mark.parametrize(
    ("model_class", "options", "message"),
    [
        (FlowformerClassifier, dict(SERIES, num_classes=0), "`num_classes` must be"),
        (FlowformerClassifier, dict(SERIES, num_classes=1), "two or more; two for y"),
        (FlowformerImageClassifier, dict(IMAGES, num_classes=1), "two or more"),
        (FlowformerImageClassifier, dict(IMAGES, num_layers=3), "`num_layers` must b"),
        (FlowformerClassifier, dict(SERIES, attention_options=[1]), "must be a dict"),
        (
            FlowformerClassifier,
            dict(SERIES, attention_options={"output_dim": 1}),
            "`attention_options` of 'flow_attention' must be among ",
        ),
        (FlowformerClassifier, dict(SERIES, vocabulary_size=3), "Either `input_dim`"),
        (FlowformerClassifier, dict(SIZES, num_classes=3), "Either `input_dim` or"),
        (FlowformerClassifier, dict(SERIES, input_dim=0), "`input_dim` must be"),
        (FlowformerClassifier, dict(SERIES, pooling="max"), "`pooling` must be one"),
        (FlowformerClassifier, dict(SERIES, positions="t5"), "`positions` must be o"),
        (FlowformerClassifier, dict(SERIES, pooling="flatten"), "`max_length` must"),
        (FlowformerClassifier, dict(SERIES, max_length=3), "`max_length` must be gi"),
        (FlowformerClassifier, dict(SERIES, norm_first=1), "`norm_first` must be T"),
        (FlowformerClassifier, dict(SERIES, attention="mha"), "`attention` must be"),
        (FlowformerClassifier, dict(SERIES, hidden_dim=9), "multiple of `num_heads`"),
        (
            FlowformerClassifier,
            dict(SERIES, hidden_dim=9, num_heads=3),
            "`hidden_dim` must be even with sinusoidal",
        ),
        (
            FlowformerClassifier,
            dict(SERIES, attention_options={"causal": True}),
            "`attention_options` of 'flow_attention' must be among ",
        ),
        (
            FlowformerClassifier,
            dict(SERIES, attention_options={"competition": "max"}),
            "`competition` must be one of",
        ),
        (FlowformerImageClassifier, dict(IMAGES, image_size=10), "multiple of 4: `p"),
        (FlowformerImageClassifier, dict(IMAGES, image_size=(8, 8, 8)), "int or a pa"),
        (FlowformerImageClassifier, dict(IMAGES, num_layers=(1,)), "one number for e"),
        (FlowformerImageClassifier, dict(IMAGES, drop_path=1.0), "`drop_path` must"),
        (FlowformerDecisionModel, dict(SIZES, state_dim=4), "Either `num_actions` or"),
        (FlowformerDecisionModel, dict(SIZES, state_dim=0), "`state_dim` must be"),
    ],
)
def test_wrong_options(model_class, options, message):
    with pytest.raises(ValueError, match=rf"{message}.* Received: "):
        model_class(**options)


def test_any_length_is_one_model():
    """An unknown length, in a compiled function."""
    model = filled(FlowformerClassifier(**SERIES, **POOLINGS[0]))
    for length in (3, 7):
        x = series(length)
        x["padding_mask"][0, LENGTH:] = 0
        assert error(model.predict(x, verbose=0), run(model, x)) < 1e-5
