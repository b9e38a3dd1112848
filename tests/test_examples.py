"""The examples and benchmarks run, from start to end, at a few steps."""

import hashlib
import json
import pathlib
import subprocess
import sys

import artefacts
import keras
import language_model
import layers as benchmark
import masked_lm
import numpy as np
import peers
import pytest
import read_a_book
import train_flash_lm

from keras_flash import FlowAttention
from keras_flash import MixedChunkAttention
from tests.helpers import BACKEND
from tests.helpers import error
from tests.helpers import normal
from tests.helpers import to_numpy

ROOT = pathlib.Path(__file__).parents[1]


def run(*command):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_demo(run_example, tmp_path):
    """Train, generate, draw, save, reload, export, run: as `make demo` does."""
    small = dict(HIDDEN_DIM=32, KEY_DIM=32, NUM_LAYERS=1, GENERATED=20)
    printed = run_example(language_model, "--steps", 3, "--output", tmp_path, **small)
    assert "bits a byte" in printed
    assert "HAMLET." in printed
    # What the untrained model writes before it may hold bars too.
    table = printed.split("| artefact |")[1].splitlines()[2:5]
    rows = {row[1].strip(): float(row[4]) for row in (x.split("|") for x in table)}
    assert set(rows) == {".keras", "SavedModel", "LiteRT"}
    assert max(rows.values()) < 1e-4
    assert (tmp_path / "loss.png").read_bytes()[:4] == b"\x89PNG"


FIGURES = (
    "japanese_vowels.py",
    "japanese_vowels.py --paper",
    "listops.py",
    "listops.py --paper",
    "fashion_mnist.py FOLDER",
    "fashion_mnist.py FOLDER --pixels",
    "offline_control.py",
    "offline_control.py --flash",
)


def test_publish(tmp_path, monkeypatch):
    monkeypatch.setattr(artefacts, "ROOT", tmp_path)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    x = np.ones((4, 3), "float32")
    model.fit(x, np.zeros((4, 2)), verbose=0)
    artefacts.publish("tiny", model, x, "A model.", "tiny.py", "0%", "four rows")
    folder = tmp_path / "saved_models/tiny"
    digest = hashlib.sha256((folder / "model.keras").read_bytes()).hexdigest()
    assert f"`{digest}`" in (folder / "README.md").read_text()
    again = keras.saving.load_model(folder / "model.keras")
    assert not again.compiled
    with np.load(folder / "sample.npz") as sample:
        assert np.abs(again.predict(sample["inputs"]) - sample["outputs"]).max() < 1e-6


@pytest.mark.parametrize("script", FIGURES)
def test_each_figure_has_its_place(script, tmp_path, monkeypatch):
    """One row in each of the two files changes, in its last cell."""
    (tmp_path / "examples").mkdir()
    names = ("README.md", "examples/README.md")
    for name in names:
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(artefacts, "ROOT", tmp_path)
    artefacts.write_figures(script, "new in short", "new in full")
    for name, figure in zip(names, ("new in short", "new in full")):
        before = (ROOT / name).read_text().splitlines()
        after = (tmp_path / name).read_text().splitlines()
        ((old, new),) = [pair for pair in zip(before, after) if pair[0] != pair[1]]
        assert len(before) == len(after)
        assert new == f"{old.rsplit('|', 2)[0]}| {figure} |"
        assert new.startswith(f"| `{script}` |")


def test_text_and_windows():
    train, held_out = language_model.load_text()
    assert len(train) + len(held_out) == 5_057_198
    assert len(held_out) == 252_859
    inputs, targets = language_model.held_out_windows(held_out)
    assert inputs.shape == targets.shape == (493, 511)
    # Disjoint: what follows a window's last target starts the next window.
    assert (inputs[0, 1:] == targets[0, :-1]).all()
    flat = np.concatenate([inputs[:, :1], targets], axis=1).ravel()
    assert (flat == held_out[: 493 * 512]).all()
    inputs, targets = language_model.training_windows(train, 2, seed=0)
    assert inputs.shape == (16, 512)
    assert (inputs[:, 1:] == targets[:, :-1]).all()


def test_models_are_of_one_size():
    flash = language_model.flash_model().count_params()
    baseline = language_model.transformer_model().count_params()
    assert abs(flash / baseline - 1) < 0.05


def test_baseline_knows_positions():
    """Were the rotary positions lost, the last byte would see a bag of bytes."""
    model = language_model.transformer_model()
    tokens = np.random.default_rng(0).integers(0, 256, (1, 20)).astype("int32")
    turned = np.concatenate([tokens[:, 18::-1], tokens[:, 19:]], axis=1)
    first, second = (
        keras.Model(model.inputs, model.get_layer(index=4).output)(x)
        for x in (tokens, turned)
    )
    assert np.abs(to_numpy(first) - to_numpy(second))[:, -1].max() > 1e-4


def test_baseline_is_causal():
    model = language_model.transformer_model()
    tokens = np.random.default_rng(0).integers(0, 256, (1, 20)).astype("int32")
    changed = tokens.copy()
    changed[:, 12:] = 0
    first, second = (model.predict_on_batch(x) for x in (tokens, changed))
    assert np.abs(first[:, :12] - second[:, :12]).max() < 1e-5
    assert np.abs(first[:, 12:] - second[:, 12:]).max() > 1e-2


def test_layers_benchmark(tmp_path):
    run("benchmarks/layers.py", "--smoke", "--output", str(tmp_path))
    rows = {
        path.stem.split("-")[0]: list(map(json.loads, path.read_text().splitlines()))
        for path in tmp_path.glob("*.jsonl")
    }
    times = rows["times"]
    groups = {"FLASH", "GAU", "Flow", "Model", "Remat"}
    assert {row["group"] for row in times} == groups
    assert all(row["seconds"] > 0 for row in times)
    assert all(row["share"] > 0 for row in times if row["name"] == "FlowAttention")
    assert rows["growth"][0]["times"] > 0
    assert rows["compiling"][0]["seconds"] > 0
    assert rows["memory"][0]["bytes"] >= 0
    assert rows["importing"][0]["seconds"] > 0
    again = ("--smoke", "--output", str(tmp_path), "--part", "memory")
    run("benchmarks/layers.py", *again, "--group", "Flow")
    (path,) = tmp_path.glob("memory-*.jsonl")
    found = [json.loads(line)["group"] for line in path.read_text().splitlines()]
    assert found == [rows["memory"][0]["group"], "Flow"]  # those of others stay
    printed = run("benchmarks/report.py", "--input", str(tmp_path))
    assert printed.count("MixedChunkAttention") >= 6  # 4 times, growth, compiling
    assert printed.count("FLASHBackbone, remat=True") == 1
    assert (tmp_path / "crossover.png").stat().st_size > 10_000


@pytest.mark.skipif(BACKEND != "torch", reason="torch counts what it calls")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "MixedChunkAttention",
        "its products alone",
        "GatedAttentionUnit",
        "FlowAttention",
    ],
)
def test_operations_are_those_of_the_equations(name, causal):
    """What a share is of, and no product besides, but for tiles on the diagonal."""
    from torch.utils.flop_counter import FlopCounterMode

    (found,) = [
        contestant
        for contestant in benchmark.CONTESTANTS
        if contestant.name == name and contestant.group != "Model"
    ]
    module = benchmark.make(found, causal)
    x = benchmark.inputs(found, 2048)
    with FlopCounterMode(display=False) as counter:
        module(x)
    needed = (found.products or benchmark.mixed_products)(2048, causal)
    if causal:
        assert needed < counter.get_total_flops() < 1.2 * needed
    else:
        assert counter.get_total_flops() == needed


def test_models_that_are_compared_are_of_one_size():
    pair = [MixedChunkAttention(benchmark.KEY_DIM) for _ in range(2)]
    ours = peers.residual(pair, benchmark.WIDTH)
    block = peers.transformer_block(
        benchmark.WIDTH, benchmark.HEADS, benchmark.FEED_FORWARD, True
    )
    assert abs(block.count_params() / ours.count_params() - 1) < 0.005


def test_plain_flow_attention_is_ours():
    """Only what is right is a peer."""
    plain, ours = peers.PlainCausalFlow(2, 4), FlowAttention(2, 4, causal=True)
    x = normal(2, 37, 8)
    plain(x)
    wanted = ours(x, x)
    names = ("query_dense", "key_dense", "value_dense", "output_dense")
    for dense, name in zip([*plain.denses, plain.output_dense], names):
        dense.set_weights(getattr(ours, name).get_weights())
    assert error(plain(x), to_numpy(wanted)) < 1e-5


@pytest.fixture
def small(monkeypatch):
    """Sizes at which the two models on subwords compile quickly."""
    for name, value in dict(
        VOCABULARY_SIZE=300,
        TOKENIZER_BYTES=50_000,
        HIDDEN_DIM=32,
        NUM_LAYERS=1,
        CHUNK_SIZE=16,
        SEQUENCE_LENGTH=32,
        GENERATED=48,
    ).items():
        monkeypatch.setattr(train_flash_lm, name, value)


def test_train_flash_lm(run_example, small):
    printed = run_example(train_flash_lm, "--steps", 2)
    assert "bits a byte" in printed
    assert "To be, or not to be" in printed


def test_masked_lm(run_example, small):
    printed = run_example(masked_lm, "--steps", 2)
    assert "of the masked tokens found" in printed


def test_read_a_book(run_example):
    """The stream and one call score the same, over a length that is no whole piece."""
    printed = run_example(read_a_book, "--lengths", 5000)
    rows = [line.split("|") for line in printed.splitlines()[-2:]]
    assert [row[2].strip() for row in rows] == ["streamed", "one call"]
    assert abs(float(rows[0][3]) - float(rows[1][3])) < 2e-4
    assert 1.0 < float(rows[0][3]) < 3.0


@pytest.mark.skipif(
    BACKEND != "jax", reason="it compiles for long; tests/models run all"
)
def test_decoding_benchmark(tmp_path):
    printed = run("benchmarks/decoding.py", "--smoke", "--output", str(tmp_path))
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert len(rows) == 7
    assert all(row["token_ms"] > 0 for row in rows)
    assert "| Flowformer | jax |" in printed


@pytest.mark.parametrize(
    ("start", "finds"), [("import keras\n", "loss"), ("import keras_hub\n", "to be")]
)
def test_readme_example(start, finds, tmp_path):
    text = (ROOT / "README.md").read_text()
    (code,) = [
        block.split("```")[0]
        for block in text.split("```python\n")[1:]
        if block.startswith(start)
    ]
    assert len(code.splitlines()) <= 15
    script = tmp_path / "readme.py"
    script.write_text(code)
    assert finds in run(str(script))
