"""Saves and exports a model and checks each artefact in a process of its own.

`examples/language_model.py` calls `make_and_check`. The subprocesses run this file:

    python artefacts.py reload FOLDER       # keras loads the .keras file
    python artefacts.py export FOLDER       # keras on tensorflow exports it
    python artefacts.py saved_model FOLDER  # tensorflow alone runs the SavedModel
    python artefacts.py litert FOLDER       # ai-edge-litert alone runs the .tflite
"""

import hashlib
import importlib.metadata
import os
import pathlib
import subprocess
import sys
from concurrent import futures

import numpy as np

MODEL, SAVED_MODEL, LITERT = "model.keras", "saved_model", "model.tflite"
# By the step that runs it in a runtime of its own.
RUNTIMES = {"saved_model": ("SavedModel", SAVED_MODEL), "litert": ("LiteRT", LITERT)}
TOLERANCE = 1e-4  # of logits around 10
ROOT = pathlib.Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "saved_models" / "shakespeare_flash"


def make_and_check(model, sample, folder, save):
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
    import tensorflow as tf

    import keras_flash  # noqa: F401  registers the layers

    model = keras.saving.load_model(folder / MODEL, compile=False)
    model.export(folder / SAVED_MODEL, format="tf_saved_model", verbose=False)
    # Built-in operators only: a runtime on a phone has no others.
    built_in = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
    model.export(folder / LITERT, format="litert", target_spec=built_in, verbose=False)


def saved_model(folder):
    sys.modules["keras"] = None  # importing it fails from here on
    import tensorflow as tf

    inputs, outputs = load_sample(folder)
    serve = tf.saved_model.load(str(folder / SAVED_MODEL)).signatures["serving_default"]
    (name,) = serve.structured_input_signature[1]
    (result,) = serve(**{name: tf.constant(inputs)}).values()
    largest_difference(result, outputs)


def litert(folder):
    from ai_edge_litert.interpreter import Interpreter

    inputs, outputs = load_sample(folder)
    interpreter = Interpreter(str(folder / LITERT))
    (given,), (made,) = (
        interpreter.get_input_details(),
        interpreter.get_output_details(),
    )
    interpreter.resize_tensor_input(given["index"], inputs.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], inputs.astype(given["dtype"]))
    interpreter.invoke()
    assert not {"keras", "tensorflow"} & set(sys.modules)
    largest_difference(interpreter.get_tensor(made["index"]), outputs)


def publish(folder, table, bits, about, arguments):
    """Copies the model to saved_models/ and the table into README.md.

    Args:
        folder: where `make_and_check` left its files.
        table: what it returned.
        bits: the bits a byte of the model.
        about: a sentence on the model, and one on the run.
        arguments: those of the command line.
    """
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    content = (folder / MODEL).read_bytes()
    (PUBLISHED / MODEL).write_bytes(content)
    (PUBLISHED / "sample.npz").write_bytes((folder / "sample.npz").read_bytes())
    (PUBLISHED / "loss.png").write_bytes((folder / "loss.png").read_bytes())
    import keras

    backend = keras.backend.backend()
    packages = ("keras", {"tensorflow": "tensorflow-cpu"}.get(backend, backend))
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)
    command = f"KERAS_BACKEND={backend} python examples/language_model.py "
    command += f"--seed {arguments.seed} --publish"
    model, run_of_it = about
    (PUBLISHED / "README.md").write_text(
        f"# shakespeare_flash\n\nA byte-level causal FLASH language model. {model}\n\n"
        f"- command: `{command}`\n"
        f"- metric: {bits:.3f} bits a byte on the last 5% of the text\n"
        f"- versions: {versions}\n"
        f"- sha256 of {MODEL}: `{hashlib.sha256(content).hexdigest()}`\n"
        "- sample.npz: two held-out windows and the logits that the model gave\n\n"
        "![loss curve](loss.png)\n"
    )
    held_out = f"Held out: {bits:.3f} bits a byte (seed {arguments.seed})."
    write_in_readme("demo table", f"{model} {run_of_it}\n\n{held_out}\n\n{table}")


def write_in_readme(part, text):
    """Puts the text between the marks of its part of README.md."""
    readme = ROOT / "README.md"
    start, end = f"<!-- {part} -->\n", f"\n<!-- end of {part} -->"
    before, rest = readme.read_text().split(start)
    readme.write_text(before + start + text + end + rest.split(end)[1])


if __name__ == "__main__":
    steps = {f.__name__: f for f in (reload, export, saved_model, litert)}
    steps[sys.argv[1]](pathlib.Path(sys.argv[2]))
