"""Saves, exports, checks and publishes what the examples train.

`make_and_check` runs each artefact in a process of its own, by this file:

    python artefacts.py reload FOLDER       # keras loads the .keras file
    python artefacts.py export FOLDER       # keras on tensorflow exports it
    python artefacts.py saved_model FOLDER  # tensorflow alone runs the SavedModel
    python artefacts.py litert FOLDER       # ai-edge-litert alone runs the .tflite
"""

import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
from concurrent import futures

import numpy as np
import runtimes

MODEL, SAVED_MODEL, LITERT = "model.keras", "saved_model", "model.tflite"
# By the step that runs it in a runtime of its own.
RUNTIMES = {"saved_model": ("SavedModel", SAVED_MODEL), "litert": ("LiteRT", LITERT)}
TOLERANCE = 1e-4  # of logits around 10
ROOT = pathlib.Path(__file__).resolve().parents[1]


def make_and_check(model, sample, folder):
    """Returns a Markdown table: artefact, made on, size, largest difference."""
    import keras

    backend = keras.backend.backend()
    save(model, folder / MODEL)
    np.savez(
        folder / "sample.npz", inputs=sample, outputs=model.predict_on_batch(sample)
    )
    with futures.ThreadPoolExecutor() as pool:  # two processes at a time
        again = pool.submit(run, "reload", folder, backend)
        run("export", folder, "tensorflow")
        others = list(pool.map(lambda step: run(step, folder, None), RUNTIMES))
    rows = [row(".keras", backend, folder / MODEL, again.result())]
    for (name, path), difference in zip(RUNTIMES.values(), others):
        rows.append(row(name, "tensorflow", folder / path, difference))
    header = "| artefact | made on | size | largest difference |\n|---|---|---|---|\n"
    return header + "\n".join(rows)


def row(name, backend, path, difference):
    if not float(difference) < TOLERANCE:
        raise RuntimeError(f"{path} differs from the model by {difference}")
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    size = sum(file.stat().st_size for file in files)
    return f"| {name} | {backend} | {size / 1e6:.2f} MB | {float(difference):.1e} |"


def run(step, folder, backend):
    """Runs one step of this file in a fresh process; returns its last line."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["PYTHONPATH"] = str(ROOT)
    if backend is not None:
        environment["KERAS_BACKEND"] = backend
    command = [sys.executable, __file__, step, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def load_sample(folder):
    with np.load(folder / "sample.npz") as sample:
        return sample["inputs"], sample["outputs"]


def largest_difference(result, outputs):
    print(np.abs(np.asarray(result) - outputs).max())


def reload(folder):
    import keras

    import keras_flash  # noqa: F401  registers the layers

    inputs, outputs = load_sample(folder)
    model = keras.saving.load_model(folder / MODEL, compile=False)
    largest_difference(model.predict_on_batch(inputs), outputs)


def export(folder):
    import keras

    import keras_flash

    model = keras.saving.load_model(folder / MODEL, compile=False)
    streaming = keras_flash.StreamingModel(model)
    keras_flash.export(streaming, folder / SAVED_MODEL)
    keras_flash.export(streaming, folder / LITERT, format="litert")


def saved_model(folder):
    sys.modules["keras"] = None  # importing it fails from here on
    score(folder, runtimes.of_saved_model(folder / SAVED_MODEL))


def litert(folder):
    score(folder, runtimes.of_litert(folder / LITERT))
    assert not {"keras", "tensorflow"} & set(sys.modules)


def score(folder, runtime):
    call, specs = runtime
    inputs, outputs = load_sample(folder)
    ((name, (_, dtype)),) = specs("score").items()
    result = call("score", {name: inputs.astype(dtype)})["outputs"]
    largest_difference(result, outputs)


def save(model, path):
    """Saves a copy that was never compiled, which holds the weights alone."""
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    copy.save(path)


def publish(name, model, sample, about, command, metric, contents, picture=None):
    """Puts the model into saved_models/, with what it answers and how it was made.

    Args:
        name: of the folder.
        model: the trained model.
        sample: some inputs, an array or a dict of arrays.
        about: what the model is, in words.
        command: the command line that made it.
        metric: how good it is, in words.
        contents: what the sample is, in words.
        picture: path of a PNG file to put beside, if any.
    """
    import keras

    folder = ROOT / "saved_models" / name
    folder.mkdir(parents=True, exist_ok=True)
    save(model, folder / MODEL)
    inputs = sample if isinstance(sample, dict) else {"inputs": sample}
    outputs = model.predict_on_batch(sample)
    np.savez_compressed(folder / "sample.npz", **inputs, outputs=outputs)
    backend = keras.backend.backend()
    packages = ("keras", {"tensorflow": "tensorflow-cpu"}.get(backend, backend))
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)
    digest = hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()
    if picture is not None:
        shutil.copy(picture, folder)
    (folder / "README.md").write_text(
        f"# {name}\n\n{about}\n\n"
        f"- command: `KERAS_BACKEND={backend} python {command}`\n"
        f"- metric: {metric}\n"
        f"- versions: {versions}\n"
        f"- sha256 of {MODEL}: `{digest}`\n"
        f"- sample.npz: {contents} and the logits that the model gave\n"
        + (f"\n![{picture.stem}]({picture.name})\n" if picture is not None else "")
    )


def by_seed(percents):
    """Of seeds and what each gave: `98.11, 98.92% (seeds 0, 1), mean 98.52%`."""
    each = ", ".join(f"{percent:.2f}" for percent in percents.values())
    seeds = ", ".join(str(seed) for seed in percents)
    return f"{each}% (seeds {seeds}), mean {mean(percents)}"


def mean(percents):
    return f"{np.mean(list(percents.values())):.2f}%"


def machine():
    """Where a figure was measured."""
    import keras

    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):  # a process may be held to some of them
        cores = len(os.sched_getaffinity(0))
    return f"{keras.backend.backend()}, {cores} core{'s' if cores > 1 else ''}"


def write_figures(script, ours, expected):
    """Puts figures into the last cell of a script's row, here and in README.md.

    Args:
        script: the first cell of its rows.
        ours: the figure in short, for README.md.
        expected: the figures, seed by seed, for examples/README.md.
    """
    for path, figure in (
        (ROOT / "README.md", ours),
        (ROOT / "examples/README.md", expected),
    ):
        lines = path.read_text().splitlines()
        (place,) = [
            i for i, line in enumerate(lines) if line.startswith(f"| `{script}` |")
        ]
        *cells, _, _ = lines[place].split("|")
        lines[place] = "|".join([*cells, f" {figure} |"])
        path.write_text("\n".join(lines) + "\n")


def write_in_readme(part, text):
    """Puts the text between the marks of its part of README.md."""
    readme = ROOT / "README.md"
    start, end = f"<!-- {part} -->\n", f"\n<!-- end of {part} -->"
    before, rest = readme.read_text().split(start)
    readme.write_text(before + start + text + end + rest.split(end)[1])


if __name__ == "__main__":
    steps = {f.__name__: f for f in (reload, export, saved_model, litert)}
    steps[sys.argv[1]](pathlib.Path(sys.argv[2]))
