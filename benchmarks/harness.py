"""What the benchmarks share: compiled steps, times in turn, memory, rows.

Everything is timed in one process, ours and the peers in turn, so that the load of the
machine is the same for both; what counts are ratios.
"""

import gc
import importlib
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
BACKEND = keras.backend.backend()
# The first is measured at every length, and the memory; all of them at one. The time to
# compile is that of the one that is called by its name.
MODES = {
    "tensorflow": ("jit", "graph"),
    "jax": ("jit",),
    "torch": ("eager", "compile"),
}[BACKEND]


def steps(module, mode):
    """A dict of `forward` and `train`, functions of the inputs.

    Training is forward, backward and AdamW, on the mean of the squared outputs.

    Args:
        module: a built Keras layer or model, or on torch any module.
        mode: one of MODES.
    """
    make = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}[BACKEND]
    forward, train = make(module, mode)
    return dict(forward=forward, train=train)


def _on_tensorflow(module, mode):
    import tensorflow as tf

    variables = module.trainable_variables
    optimizer = keras.optimizers.AdamW(1e-4)
    optimizer.build(variables)

    @tf.function(jit_compile=mode == "jit")
    def forward(x):
        return module(x)

    @tf.function(jit_compile=mode == "jit")
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(module(x)))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        optimizer.apply(gradients, variables)
        return loss

    return forward, train


def _on_jax(module, mode):
    import jax

    variables = module.trainable_variables
    optimizer = keras.optimizers.AdamW(1e-4)
    optimizer.build(variables)

    def call(weights, x):
        return module.stateless_call(weights, fixed, x)[0]

    @jax.jit
    def update(weights, slots, x):
        def loss(weights):
            return (call(weights, x) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        weights, slots = optimizer.stateless_apply(slots, gradients, weights)
        return value, weights, slots

    forward = jax.jit(call)
    fixed = [variable.value for variable in module.non_trainable_variables]
    weights = [variable.value for variable in variables]
    state = [weights, [variable.value for variable in optimizer.variables]]

    def train(x):
        value, *state[:] = update(*state, x)
        return value

    return lambda x: forward(weights, x), train


def _on_torch(module, mode):
    import torch

    call = torch.compile(module, dynamic=False) if mode == "compile" else module
    if isinstance(module, keras.Layer):  # `parameters()` of a backbone is empty
        parameters = [variable.value for variable in module.trainable_variables]
    else:
        parameters = module.parameters()
    optimizer = torch.optim.AdamW(parameters, 1e-4)

    def train(x):
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return torch.no_grad()(lambda x: call(x)), train


def wait(tensors):
    """Until the first of them is computed, and so all of the program."""
    leaf = keras.tree.flatten(tensors)[0]
    if BACKEND == "jax":
        leaf.block_until_ready()
    elif BACKEND == "tensorflow":
        keras.ops.ravel(leaf)[0].numpy()
    elif leaf.is_cuda:
        import torch

        torch.cuda.synchronize()


def in_turn(functions, turns, least=0.0):
    """Median seconds of each function, after a call that compiles it.

    Args:
        functions: what to call, without arguments, by name.
        turns: int, the least number of turns.
        least: seconds that all turns take at least.
    """
    for function in functions.values():
        wait(function())
    times = {name: [] for name in functions}
    end = time.perf_counter() + least
    while min(map(len, times.values())) < turns or time.perf_counter() < end:
        for name, function in functions.items():
            times[name].append(seconds(function))
    return {name: statistics.median(found) for name, found in times.items()}


def seconds(function):
    """Seconds of one call."""
    start = time.perf_counter()
    wait(function())
    return time.perf_counter() - start


def forget_programs():
    """So that the next call compiles, whatever was compiled before, or fails.

    All layers of Keras are one function to torch.compile, which makes a few programs
    of a function and then, by default, none any more.
    """
    if BACKEND == "torch":
        import torch

        torch.compiler.reset()
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        torch._inductor.config.force_disable_caches = True


def products(sizes):
    """Functions that each compute a square float32 matrix product, by its size."""
    found = {}
    for size in sizes:
        a = normal(size, size)
        found[size] = lambda a=a: keras.ops.matmul(a, a)
    return found


def best_rate(times, sizes):
    """Operations a second of the best product of `in_turn(products(sizes), ...)`."""
    return max(2 * size**3 / times[size] for size in sizes)


def peak_bytes(function):
    """The peak of a call less what there was before it, in bytes. Linux only.

    Of the second call: the first one compiles. Runs `in_a_process`, under RETURNS.
    """
    wait(function())
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    wait(function())
    return _status("VmHWM") - before


def _status(name):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")


# What is freed goes back to the system at once, so that it is not there before the next
# call; with oneDNN, TensorFlow keeps it.
RETURNS = {"MALLOC_MMAP_THRESHOLD_": str(2**17), "TF_ENABLE_ONEDNN_OPTS": "0"}
# It never goes back. Left alone, malloc of glibc gives what is over 32 MB back at once,
# and each call at the greater length would clear its pages anew.
KEEPS = {
    "GLIBC_TUNABLES": f"glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={10**12}"
}


def in_a_process(memory, function, *arguments):
    """What a function of the benchmark gives, called in a process of its own.

    Args:
        memory: RETURNS or KEEPS, what becomes of memory that is freed.
        function: its name, one that `in_child` knows.
        arguments: that JSON can hold.
    """
    call = json.dumps([function, *arguments])
    done = subprocess.run(
        [sys.executable, sys.argv[0], "--child", call],
        env={**os.environ, **memory},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def in_child(call, functions):
    """The other end of it: calls one of the functions and prints what it gives."""
    name, *arguments = call
    found = {function.__name__: function for function in functions}[name](*arguments)
    print(json.dumps(found))


def import_seconds(first, second, turns):
    """Median seconds of an import after another one, each in a process of its own."""
    lines = f"import time, {first}; t = time.perf_counter(); import {second}"
    command = [sys.executable, "-c", f"{lines}; print(time.perf_counter() - t)"]
    printed = [subprocess.check_output(command) for _ in range(turns)]
    return statistics.median(float(text.split()[-1]) for text in printed)


def processor():
    """The name of the processor and the widest of its vector instructions."""
    info = pathlib.Path("/proc/cpuinfo")
    facts = info.read_text() if info.exists() else ""
    name = re.search("model name.*: (.+)", facts)
    widest = [set_ for set_ in ("amx_bf16", "avx512f", "avx2") if set_ in facts][:1]
    return " ".join([name[1] if name else platform.machine(), *widest])


def about():
    """The machine, the versions and the commit of a row."""
    names = "keras", BACKEND
    versions = {name: importlib.import_module(name).__version__ for name in names}
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return dict(
        backend=BACKEND,
        machine=f"{processor()}, {os.cpu_count()} cores",
        versions=versions,
        commit=commit.stdout.strip(),
    )


def write(name, rows, folder=RESULTS, group=None):
    """Prints rows and writes them, one JSON line each, as they come.

    Those of other groups stay where there is one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    more = about()
    path = folder / f"{name}-{BACKEND}.jsonl"
    kept = path.read_text().splitlines() if group and path.exists() else []
    kept = [line for line in kept if json.loads(line).get("group") not in (None, group)]
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in kept)
        for row in rows:
            line = json.dumps({**row, **more})
            print(line, flush=True)
            print(line, file=file, flush=True)


def read(name, folder=RESULTS):
    """The rows of all backends."""
    return [
        json.loads(line)
        for path in sorted(folder.glob(f"{name}-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def publish(part, table):
    """Puts a table between its marks in README.md."""
    sys.path.insert(0, str(ROOT / "examples"))
    import artefacts

    artefacts.write_in_readme(part, table)


def normal(*shape):
    return keras.ops.convert_to_tensor(
        np.random.default_rng(0).normal(size=shape).astype("float32")
    )
