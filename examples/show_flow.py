"""Draws what the flow of a trained Flowformer holds on to, for a series and an image.

    python examples/show_flow.py                # writes two PNG files to output/
    python examples/show_flow.py --output FOLDER

Competition says how much of each source is let through, allocation how much each sink
may take in; both come from `return_flow` of every block (Wu et al., 2022, figures 7
and 8). The models and what they look at are those of saved_models/.
"""

import argparse
import os
import pathlib

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import keras_flash  # registers the models

ROOT = pathlib.Path(__file__).resolve().parents[1]
CLOTHES = (
    "T-shirt", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


def load(name):
    """A saved model and its sample: inputs as the model takes them, and logits."""
    folder = ROOT / "saved_models" / name
    with np.load(folder / "sample.npz") as sample:
        arrays = dict(sample)
    outputs = arrays.pop("outputs")
    inputs = arrays if "padding_mask" in arrays else arrays["inputs"]
    return keras.saving.load_model(folder / "model.keras"), inputs, outputs


def flows(model, inputs):
    """Competition and allocation of each block, the mean over heads, `(b, t)`."""
    found, padding = [], {}
    if isinstance(inputs, dict):
        mask = inputs["padding_mask"]
        padding = {"query_mask": mask, "value_mask": mask}
    attentions = [
        layer for layer in model.layers if isinstance(layer, keras_flash.FlowAttention)
    ]
    for layer in attentions:
        query = layer.input if not isinstance(layer.input, list) else layer.input[0]
        x = keras.Model(model.input, query)(inputs)
        _, flow = layer(x, x, return_flow=True, **padding)
        found.append(
            {
                name: keras.ops.convert_to_numpy(flow[name]).mean(axis=1)
                for name in ("competition", "allocation")
            }
        )
    return found


def draw_series(path):
    """The channels of an utterance above, below them a row of each block."""
    model, inputs, outputs = load("japanese_vowels")
    found = flows(model, inputs)
    row = 0
    length = int(inputs["padding_mask"][row].sum())
    figure, axes = plt.subplots(
        3, 1, figsize=(8, 7), sharex=True, height_ratios=(2, 1, 1), layout="constrained"
    )
    axes[0].plot(inputs["inputs"][row, :length], linewidth=1)
    axes[0].set_ylabel("12 channels")
    axes[0].set_title(
        f"An utterance of speaker {outputs[row].argmax() + 1}, as the model says"
    )
    for axis, name in zip(axes[1:], ("competition", "allocation")):
        for number, flow in enumerate(found):
            axis.plot(flow[name][row, :length], label=f"block {number + 1}")
        axis.set_ylabel(name)
        axis.legend()
    axes[2].set_xlabel("step")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_images(path, count=4):
    """Images above, below them both weights of a block of the first stage."""
    model, images, outputs = load("fashion_mnist")
    flow = flows(model, images)[1]  # the last block of the first stage
    side = int(np.sqrt(flow["competition"].shape[1]))
    figure, axes = plt.subplots(
        3, count, figsize=(2.2 * count, 7), layout="constrained"
    )
    for column in range(count):
        axes[0, column].imshow(images[column, :, :, 0], cmap="gray")
        axes[0, column].set_title(CLOTHES[outputs[column].argmax()])
        for axis, name in zip(axes[1:, column], ("competition", "allocation")):
            shown = axis.imshow(flow[name][column].reshape(side, side), cmap="viridis")
            figure.colorbar(shown, ax=axis, shrink=0.7)
    for axis, name in zip(axes[:, 0], ("image", "competition", "allocation")):
        axis.set_ylabel(name)
    for axis in axes.ravel():
        axis.set_xticks([])
        axis.set_yticks([])
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "output")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for draw, name in ((draw_series, "flow_series"), (draw_images, "flow_images")):
        path = arguments.output / f"{name}.png"
        draw(path)
        print(path)


if __name__ == "__main__":
    main()
