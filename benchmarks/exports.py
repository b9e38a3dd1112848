"""Every kind of model, exported by each backend to each format, and run there.

    python benchmarks/exports.py                     # all of it, about an hour
    python benchmarks/exports.py --backend torch     # a part, and other rows kept
    python benchmarks/exports.py --format onnx
    python benchmarks/exports.py --publish           # the table of README.md

An artefact is made in one process and run in another, by the format's own runtime,
where keras cannot be imported. What differs most from what the model gives, or the
reason why there is no artefact, goes to benchmarks/results/exports.jsonl.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from concurrent import futures

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples"))
RESULTS = HERE / "results/exports.jsonl"
BACKENDS = ("tensorflow", "jax", "torch")
FORMATS = ("tf_saved_model", "litert", "onnx", "openvino", "torch")
BATCH, LENGTH, CHUNK = 3, 21, 8  # a length that is no multiple of the chunk
SIZES = {  # by what may be any
    "static": dict(batch_size=BATCH, length=LENGTH),
    "any batch": dict(batch_size=None, length=LENGTH),
    "any length": dict(batch_size=None, length=None),
}
OTHERS = {"static": {}, "any batch": dict(batch_size=5)}
OTHERS["any length"] = dict(batch_size=5, length=34)
VOCABULARY_SIZE, CHANNELS, IMAGE = 50, 6, 16
TOLERANCE = 1e-5  # of the largest output
TIMEOUT = 900  # seconds of a process


def families():
    """`{name: function that gives a model}`; a streamed one is causal."""
    import keras_flash

    text = dict(vocabulary_size=VOCABULARY_SIZE, num_layers=2, hidden_dim=32)
    chunks = dict(key_dim=16, chunk_size=CHUNK)
    flow = dict(num_heads=2, intermediate_dim=64, dropout=0.0)

    def streaming(backbone):
        return lambda: keras_flash.StreamingModel(backbone())

    return {
        "FLASH-Quad encoder": lambda: keras_flash.FLASHBackbone(
            **text, attention="gated_attention_unit", key_dim=16
        ),
        "FLASH encoder": lambda: keras_flash.FLASHBackbone(**text, **chunks),
        "causal FLASH": streaming(
            lambda: keras_flash.FLASHBackbone(**text, **chunks, causal=True)
        ),
        "Flowformer encoder": lambda: keras_flash.FlowformerBackbone(**text, **flow),
        "causal Flowformer": streaming(
            lambda: keras_flash.FlowformerBackbone(**text, **flow, causal=True)
        ),
        "vision": lambda: keras_flash.FlowformerImageClassifier(
            7, IMAGE, 3, num_layers=(1, 1), hidden_dims=(16, 32), num_heads=2
        ),
        "series": lambda: keras_flash.FlowformerClassifier(
            7, 2, hidden_dim=32, input_dim=CHANNELS, **flow
        ),
    }


FAMILIES = (
    *("FLASH-Quad encoder", "FLASH encoder", "causal FLASH", "Flowformer encoder"),
    *("causal Flowformer", "vision", "series"),
)


def inputs_of(family, batch_size=BATCH, length=LENGTH):
    """Arrays with padding at the end of the second row, where there is a mask."""
    random = np.random.default_rng(0)
    if family == "vision":
        shape = (batch_size, IMAGE, IMAGE, 3)
        return {"images": random.normal(size=shape).astype("float32")}
    mask = np.ones((batch_size, length), "int32")
    mask[1, length - 4 :] = 0
    if family == "series":
        shape = (batch_size, length, CHANNELS)
        series = random.normal(size=shape).astype("float32")
        return {"inputs": series, "padding_mask": mask}
    ids = random.integers(0, VOCABULARY_SIZE, (batch_size, length)).astype("int32")
    if family.startswith("causal"):  # every token counts
        return {"token_ids": ids}
    return {"token_ids": ids, "padding_mask": mask}


def make(family, format, sizes, folder):
    """Writes the artefact, and beside it inputs and what the model gives for them."""
    import keras

    import keras_flash

    keras.utils.set_random_seed(0)
    model = families()[family]()
    path = folder / ("artefact" + keras_flash.models.exporting.SUFFIXES[format])
    if family.startswith("causal"):
        path = path if format == "litert" else folder / "artefact"
    keras_flash.export(model, path, format, **SIZES[sizes])
    given = inputs_of(family, **OTHERS[sizes])
    keras_model = model.model if family.startswith("causal") else model
    inputs = dict(given)
    if "padding_mask" in keras_model.input and "padding_mask" not in inputs:
        inputs["padding_mask"] = np.ones_like(given["token_ids"])
    single = next(iter(inputs.values()))
    outputs = keras_model.predict_on_batch(
        inputs if isinstance(keras_model.input, dict) else single
    )
    np.savez(
        folder / "sample.npz", outputs=keras.ops.convert_to_numpy(outputs), **given
    )
    print(path)


def compare(family, format, path, folder):
    """Runs the artefact in this process; prints the largest difference, relative."""
    for name in ("keras", "keras_flash", "jax", *({"torch"} - {format})):
        sys.modules[name] = None  # importing it fails from here on
    from runtimes import RUNTIMES

    call, specs = RUNTIMES[format](path)
    with np.load(folder / "sample.npz") as sample:
        given = {name: sample[name] for name in sample.files}
    wanted = given.pop("outputs")
    names = specs("score")
    if len(given) == 1:  # a model of one input may call it as it likes
        given = {name: next(iter(given.values())) for name in names}
    given = {name: x.astype(names[name][1]) for name, x in given.items()}
    (found,) = call("score", given).values()
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    differences = [np.abs(found - wanted).max()]
    if family.startswith("causal"):
        differences += streamed(call, specs, given["token_ids"], wanted)
    print(max(differences) / np.abs(wanted).max())


def streamed(call, specs, ids, wanted):
    """Differences of a prompt, and of the tokens after it one by one."""
    fixed = specs("prefill")["token_ids"][0][1]
    count = ids.shape[1] - 4
    state = {
        name: np.zeros((len(ids), *shape[1:]), dtype)
        for name, (shape, dtype) in specs("prefill").items()
        if name.startswith("state_")
    }
    piece = ids if fixed is not None else ids[:, :count]
    inputs = {"token_ids": piece, "length": np.int32(count)}
    result = call("prefill", {**inputs, **state})
    yield np.abs(result["outputs"] - wanted[:, count - 1]).max()
    for at in range(count, ids.shape[1]):
        state = {name: result[name] for name in state}
        result = call("decode", {"token_ids": ids[:, at : at + 1], **state})
        yield np.abs(result["outputs"] - wanted[:, at]).max()


def in_a_process(backend, *arguments):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = str(HERE.parent)
    environment["KERAS_BACKEND"] = backend
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT
    )
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if x and not x.startswith(" ")]
        raise RuntimeError(lines[-1] if lines else f"died by {-done.returncode}")
    return done.stdout.splitlines()[-1]


def cell(backend, family, format, sizes):
    row = dict(backend=backend, family=family, format=format, sizes=sizes)
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = in_a_process(backend, "make", family, format, sizes, folder)
            row["difference"] = float(
                in_a_process(backend, "compare", family, format, path, folder)
            )
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            row["reason"] = str(error)[:400]
    print(json.dumps(row), flush=True)
    return row


def published():
    """The table, a row for each backend and format, and the reasons of what fails."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    found, reasons = {}, {}
    for row in rows:
        place = row["backend"], row["format"], row["family"]
        if "reason" in row:
            key = row["backend"], row["format"], row["sizes"], row["reason"]
            reasons.setdefault(key, []).append(row["family"])
        else:
            found.setdefault(place, []).append((row["sizes"], row["difference"]))
    lines = [
        ["backend", "format", *FAMILIES],
        ["---"] * (2 + len(FAMILIES)),
    ]
    for backend in BACKENDS:
        for format in FORMATS:
            cells = [found.get((backend, format, family)) for family in FAMILIES]
            if any(cells):
                # The sizes come from the narrowest to the widest.
                texts = [
                    f"{cell[-1][0]}, {max(x for _, x in cell):.0e}" if cell else "no"
                    for cell in cells
                ]
                lines.append([backend, f"`{format}`", *texts])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = [
        f"- {backend}, `{format}`, {sizes}"
        + (f" ({', '.join(names)})" if len(names) < len(FAMILIES) else "")
        + f": {reason}"
        for (backend, format, sizes, reason), names in reasons.items()
    ]
    return "\n".join([table, "", *notes])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--format", choices=FORMATS)
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args()
    if arguments.publish:
        import artefacts

        artefacts.write_in_readme("exports table", published())
        return
    asked = dict(vars(arguments))
    del asked["publish"]
    asked = {name: value for name, value in asked.items() if value}
    cells = [
        dict(backend=backend, family=family, format=format, sizes=sizes)
        for backend in BACKENDS
        for format in FORMATS
        for family in FAMILIES
        for sizes in SIZES
    ]
    cells = [row for row in cells if asked.items() <= row.items()]
    kept = []
    if RESULTS.exists():
        rows = map(json.loads, RESULTS.read_text().splitlines())
        kept = [row for row in rows if not asked.items() <= row.items()]
    with futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda row: cell(**row), cells))
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in kept + found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        family, format, sizes, folder = sys.argv[2:]
        make(family, format, sizes, pathlib.Path(folder))
    elif sys.argv[1:2] == ["compare"]:
        family, format, path, folder = sys.argv[2:]
        compare(family, format, pathlib.Path(path), pathlib.Path(folder))
    else:
        main()
