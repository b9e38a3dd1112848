"""The examples of the Flowformer tasks: their data, and a few steps of each."""

import gzip
import itertools
import struct

import fashion_mnist
import japanese_vowels
import listops
import numpy as np
import offline_control
import pytest
import show_flow


def test_japanese_vowels(run_example):
    printed = run_example(japanese_vowels, "--steps", 2, HIDDEN_DIM=32)
    assert "seed 0: " in printed
    assert "last epoch " in printed


def test_japanese_vowels_data():
    """The official split, and the first and last numbers of the files."""
    (train, speakers), (test, _) = japanese_vowels.load()
    assert train["inputs"].shape == (270, 29, 12)
    assert test["inputs"].shape == (370, 29, 12)
    lengths = train["padding_mask"].sum(axis=1)
    assert (lengths.min(), lengths.max()) == (7, 26)
    assert test["padding_mask"].sum(axis=1).max() == 29
    assert np.bincount(speakers).tolist() == [30] * 9
    series, mask, _ = japanese_vowels.read("train")
    assert series[0, 0, 0] == np.float32(1.860936)
    assert series[0, mask[0].sum() - 1, 0] == np.float32(1.261441)
    assert series[0, mask[0].sum() - 1, 11] == np.float32(-0.175986)
    assert (series[mask == 0] == 0).all()
    real = train["inputs"][train["padding_mask"] > 0]
    assert np.abs(real.mean(axis=0)).max() < 1e-4
    assert np.abs(real.std(axis=0) - 1).max() < 1e-4


def value_of(text):
    """An expression's value, by another way than the generator's: a stack."""
    stack = []
    for word in text.split():
        if word != "]":
            stack.append(int(word) if word.isdigit() else word)
            continue
        values = []
        while isinstance(stack[-1], int):
            values.append(stack.pop())
        middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
        stack.append(
            {
                "[MIN": min(values),
                "[MAX": max(values),
                "[MED": sum(middle) // len(middle),
                "[SM": sum(values) % 10,
            }[stack.pop()]
        )
    (value,) = stack
    return value


def depth_of(text):
    depths = np.cumsum([word[0] == "[" for word in text.split()])
    return (depths - np.cumsum([word == "]" for word in text.split()])).max()


def test_listops_are_right():
    made = list(itertools.islice(listops.expressions(3, (10, 100)), 2000))
    for tokens, value in made:
        text = listops.write(tokens)
        assert 10 < len(tokens) < 100
        assert value_of(text) == value
        assert depth_of(text) < 10  # the tenth level holds digits
    again = itertools.islice(listops.expressions(3, (10, 100)), 20)
    assert list(again) == made[:20]
    other = itertools.islice(listops.expressions(4, (10, 100)), 20)
    assert list(other) != made[:20]


def test_long_listops():
    """Lengths and shares of the classes are those that are published: 17% at most."""
    made = list(itertools.islice(listops.expressions(0, (500, 2000)), 500))
    assert all(500 < len(tokens) < 2000 for tokens, _ in made)
    assert all(value_of(listops.write(tokens)) == value for tokens, value in made[:50])
    assert 800 < np.median([len(tokens) for tokens, _ in made]) < 1150
    shares = np.bincount([value for _, value in made], minlength=10) / len(made)
    assert 0.14 < shares.max() < 0.21  # 17% and three standard errors
    assert set(np.argsort(shares)[-2:]) == {0, 9}  # of MIN and of MAX
    x, y = next(listops.batches(1, (500, 2000), 4))
    assert x["inputs"].shape == x["padding_mask"].shape == (4, 2000)
    assert ((x["inputs"] > 0) == x["padding_mask"]).all()
    for row, value in zip(x["inputs"], y):
        assert value_of(listops.write(row[row > 0])) == value


def test_listops(run_example):
    printed = run_example(listops, "--steps", 2)
    assert "seed 0: " in printed
    assert "the most frequent value alone" in printed


@pytest.fixture
def folder(tmp_path):
    """Fashion-MNIST as published, but of a few random images."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 40), ("t10k", 20)):
        for kind, array in (
            ("images-idx3", generator.integers(0, 256, (count, 28, 28))),
            ("labels-idx1", generator.integers(0, 10, count)),
        ):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            content = gzip.compress(header + array.astype("uint8").tobytes())
            (tmp_path / f"{part}-{kind}-ubyte.gz").write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("view", [[], ["--pixels"]])
def test_fashion_mnist(run_example, folder, view):
    small = dict(
        IMAGE_MODEL=dict(fashion_mnist.IMAGE_MODEL, num_layers=(1, 1)),
        PIXEL_MODEL=dict(fashion_mnist.PIXEL_MODEL, num_layers=1),
    )
    printed = run_example(fashion_mnist, folder, "--steps", 1, *view, **small)
    assert "% after " in printed


def test_idx_files(folder):
    images = fashion_mnist.read_idx(folder / "train-images-idx3-ubyte.gz")
    generator = np.random.default_rng(0)
    assert (images == generator.integers(0, 256, (40, 28, 28))).all()
    scaled = fashion_mnist.as_images(fashion_mnist.load(folder, "train")[0])
    assert scaled.shape == (40, 32, 32, 1)
    assert (scaled[:, 0] == scaled.min()).all()
    assert np.allclose(scaled[3, 2:30, 2:30, 0] * 90 + 73, images[3])
    pixels = fashion_mnist.as_pixels(fashion_mnist.load(folder, "train")[0])
    assert np.allclose(pixels["inputs"][3, 28:56, 0] * 90 + 73, images[3, 1])
    cut = struct.pack(">HBBI", 0, 8, 1, 5) + b"ab"
    (folder / "cut.gz").write_bytes(gzip.compress(cut))
    with pytest.raises(ValueError, match="must be an idx file"):
        fashion_mnist.read_idx(folder / "cut.gz")


@pytest.mark.parametrize("attention", [[], ["--flash"]])
def test_offline_control(run_example, attention):
    printed = run_example(offline_control, "--steps", 2, *attention)
    assert "asked for 200, plays" in printed


def test_trajectories():
    episodes = offline_control.collect(seed=1, count=5)
    for episode in episodes:
        rewards = -np.diff(episode["returns"], append=0) * offline_control.MAX_STEPS
        assert np.abs(rewards - 1).max() < 1e-4
        assert len(episode["states"]) == len(episode["actions"])
    x = offline_control.windows(episodes, count=50, seed=0)
    for row in range(50):
        start, size = x["timesteps"][row, 0], x["padding_mask"][row].sum()
        assert any(
            (episode["states"][start : start + size] == x["states"][row, :size]).all()
            and (
                episode["actions"][start : start + size] == x["actions"][row, :size]
            ).all()
            for episode in episodes
            if len(episode["actions"]) >= start + size
        )
        assert not x["states"][row, size:].any()


def test_show_flow(run_example, tmp_path):
    run_example(show_flow, "--output", tmp_path)
    for name in ("flow_series", "flow_images"):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    model, inputs, _ = show_flow.load("japanese_vowels")
    flow = show_flow.flows(model, inputs)
    assert len(flow) == 2
    lengths = inputs["padding_mask"].sum(axis=1)
    for block in flow:  # competition conserves the number of sources
        competition = block["competition"] * inputs["padding_mask"]
        assert np.allclose(competition.sum(axis=1), lengths, rtol=1e-4)
    first, second = (block["allocation"] for block in flow)
    assert np.abs(first - second).max() > 0.01  # each block sees what comes to it
    model, images, _ = show_flow.load("fashion_mnist")
    for block, tokens in zip(show_flow.flows(model, images), (64, 64, 16, 16)):
        assert block["allocation"].shape == (8, tokens)
        assert np.allclose(block["competition"].sum(axis=1), tokens, rtol=1e-4)
