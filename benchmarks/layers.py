"""Time and memory of each layer, and of its peers, against the length.

    KERAS_BACKEND=torch python benchmarks/layers.py                # one backend
    KERAS_BACKEND=jax python benchmarks/layers.py --part growth
    KERAS_BACKEND=jax python benchmarks/layers.py --part times --group Flow
    python benchmarks/report.py                            # tables and plots of them

Batch 1, float32. A time is the median of at least TURNS calls of a forward pass or of
a step of training (forward, backward, AdamW). Ours, the peers and matrix products of
1,024, 2,048 and 4,096 take turns in one process. A share is the rate of the products
that a layer really needs over the best rate of those. Memory is the peak of one call
in a fresh process less what there was before it (Linux). Some peers are packages for
torch; where they are not installed, their rows are missing.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import typing

import harness
import keras
import peers
from harness import BACKEND

import keras_flash
from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention

STEPS = ("forward", "train")
FAR, NEAR = 65536, 8192  # lengths of the linear layers, one over the other
COMPILED = [1024, 4096, 16384]  # lengths of which the first call is timed
TURNS, SECONDS = 5, 2.0  # the least of turns and of their time
PRODUCTS = [1024, 2048, 4096]  # sizes of the products that a rate is a share of
# Of the gated layers and their peers; EXPANDED is the width inside.
WIDTH, EXPANDED, KEY_DIM, CHUNK = 512, 1024, 128, 256
HEADS, FEED_FORWARD = 8, 1455  # of a Transformer block as large as two FLASH layers
FLOW_WIDTH, FLOW_HEAD = 256, 32
REMAT_LAYERS, VOCABULARY_SIZE = 6, 256


@dataclasses.dataclass(frozen=True)
class Group:
    """What is measured side by side.

    Attributes:
        lengths: of the times.
        memory: lengths of the memory.
        causal: of the times; memory is measured with the last of them.
        shares: whether there are shares, and times in each mode.
    """

    lengths: tuple = ()
    memory: tuple = ()
    causal: tuple = (False, True)
    steps: tuple = STEPS
    shares: bool = False


GROUPS = {
    "FLASH": Group(lengths=(4096,), memory=(4096,), shares=True),
    "GAU": Group(lengths=(4096,), memory=(4096,), shares=True),
    "Flow": Group(lengths=(2048,), memory=(2048,), shares=True),
    "Packed": Group(),
    "Model": Group(
        lengths=(512, 1024, 2048, 4096, 8192, 16384),
        memory=(1024, 4096, 16384),
        causal=(True,),
        steps=("train",),
    ),
    "Remat": Group(lengths=(4096,), memory=(4096,), causal=(True,), steps=("train",)),
}


@dataclasses.dataclass(frozen=True)
class Contestant:
    """What takes turns with the others of its group.

    Attributes:
        make: function of `causal` that gives a module.
        products: for ours, function of length and `causal`: operations of a forward
            pass, of matrix products alone.
        linear: whether it is measured at FAR.
        longest: the longest length, where the cost is quadratic.
        compiled: causal or not, where it is measured in more than the first mode.
    """

    group: str
    name: str
    make: typing.Callable
    products: typing.Callable = None
    linear: bool = False
    longest: int = FAR
    causal: tuple = (False, True)
    compiled: tuple = (False, True)


def pairs(length, span, causal):
    """How many pairs of a query and a key there are."""
    return length * ((span + 1) / 2 if causal else span)


def gated_products(length, span, causal):
    projections = length * WIDTH * (3 * EXPANDED + KEY_DIM)
    return 2 * (projections + pairs(length, span, causal) * (KEY_DIM + EXPANDED))


def mixed_products(length, causal):
    local = gated_products(length, min(CHUNK, length), causal)
    return local + 4 * length * KEY_DIM * EXPANDED


def flow_products(length, causal):
    # Causal sums in tiles cost more; what is needed is a state for every token.
    return 2 * length * (4 * FLOW_WIDTH**2 + 2 * HEADS * FLOW_HEAD**2)


def flash(causal):
    return MixedChunkAttention(KEY_DIM, chunk_size=CHUNK, causal=causal)


class Packed(keras.layers.Layer):
    """A layer of segments of about 700 tokens, which start anywhere."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def build(self, shape):
        self.layer.build(shape)

    def call(self, x):
        starts = keras.ops.cast(x[:, :, 0] > 3.0, "int32")
        return self.layer(x, segment_ids=keras.ops.cumsum(starts, axis=1))


def attend(layer, **options):
    return peers.self_attention(layer, FLOW_WIDTH, **options)


def backbone(causal, remat):
    return keras_flash.FLASHBackbone(
        VOCABULARY_SIZE, REMAT_LAYERS, WIDTH, causal=causal, remat=remat
    )


CONTESTANTS = [
    Contestant(
        "FLASH", "MixedChunkAttention", flash, products=mixed_products, linear=True
    ),
    Contestant(
        "FLASH",
        "its products alone",
        lambda causal: peers.MixedProducts(WIDTH, EXPANDED, KEY_DIM, CHUNK, causal),
    ),
    Contestant(
        "GAU",
        "GatedAttentionUnit",
        lambda causal: GatedAttentionUnit(KEY_DIM, causal=causal),
        products=lambda length, causal: gated_products(length, length, causal),
    ),
    Contestant(
        "Flow",
        "FlowAttention",
        lambda causal: attend(FlowAttention(HEADS, FLOW_HEAD, causal=causal)),
        products=flow_products,
        linear=True,
    ),
    Contestant(
        "Flow",
        "MultiHeadAttention",
        lambda causal: attend(
            keras.layers.MultiHeadAttention(HEADS, FLOW_HEAD), use_causal_mask=causal
        ),
    ),
    Contestant(
        "Flow",
        "plain Flow-Attention",
        lambda causal: peers.PlainCausalFlow(HEADS, FLOW_HEAD),
        causal=(True,),
    ),
    Contestant(
        "Packed",
        "MixedChunkAttention with segments",
        lambda causal: Packed(flash(causal)),
        linear=True,
    ),
    Contestant(
        "Model",
        "two FLASH layers",
        lambda causal: peers.residual([flash(causal), flash(causal)], WIDTH),
    ),
    Contestant("Remat", "FLASHBackbone", functools.partial(backbone, remat=False)),
    Contestant(
        "Remat", "FLASHBackbone, remat=True", functools.partial(backbone, remat=True)
    ),
]
if BACKEND == "torch":
    CONTESTANTS += itertools.starmap(
        Contestant, peers.of_torch(WIDTH, KEY_DIM, CHUNK, HEADS, FEED_FORWARD)
    )
    CONTESTANTS += itertools.starmap(
        # The causal one, a loop over chunks, compiles for minutes.
        functools.partial(Contestant, compiled=(False,)),
        peers.linear_of_torch(FLOW_WIDTH, HEADS, FLOW_HEAD),
    )
else:
    CONTESTANTS.append(
        Contestant(
            "Model",
            "Transformer block of Keras",
            lambda causal: peers.transformer_block(WIDTH, HEADS, FEED_FORWARD, causal),
            longest=8192,
        )
    )


def make(contestant, causal):
    keras.utils.set_random_seed(0)
    module = contestant.make(causal)
    module(inputs(contestant, 16))  # builds
    return module


def inputs(contestant, length):
    if contestant.group == "Remat":
        ids = keras.ops.ones((1, length), "int32")
        return {"token_ids": ids, "padding_mask": ids}
    width = FLOW_WIDTH if contestant.group == "Flow" else WIDTH
    return harness.normal(1, length, width)


def function_of(contestant, causal, length, step, mode):
    function = harness.steps(make(contestant, causal), mode)[step]
    return functools.partial(function, inputs(contestant, length))


def about(contestant, causal, length, step, mode):
    return dict(
        group=contestant.group,
        name=contestant.name,
        causal=causal,
        length=length,
        step=step,
        mode=mode,
    )


def members_of(name, causal, length=0):
    return [
        contestant
        for contestant in CONTESTANTS
        if contestant.group == name
        and causal in contestant.causal
        and length <= contestant.longest
    ]


def times():
    """Seconds, in every mode and with shares in the groups with `shares`."""
    for name, group in GROUPS.items():
        for causal, length, step in itertools.product(
            group.causal, group.lengths, group.steps
        ):
            members = members_of(name, causal, length)
            if members:
                yield from times_of(members, causal, length, step)


def times_of(members, causal, length, step):
    harness.forget_programs()
    shares = GROUPS[members[0].group].shares
    functions = harness.products(PRODUCTS) if shares else {}
    calls = [
        (contestant, mode)
        for contestant in members
        for mode in harness.MODES
        if mode == harness.MODES[0] or (shares and causal in contestant.compiled)
    ]
    for contestant, mode in calls:
        function = function_of(contestant, causal, length, step, mode)
        functions[contestant.name, mode] = function
    found = harness.in_turn(functions, TURNS, SECONDS)
    for contestant, mode in calls:
        seconds = found[contestant.name, mode]
        row = about(contestant, causal, length, step, mode)
        row["seconds"] = seconds
        if shares and contestant.products is not None:
            passes = 3 if step == "train" else 1
            rate = passes * contestant.products(length, causal) / seconds
            row["share"] = rate / harness.best_rate(found, PRODUCTS)
        yield row


def growth():
    """Of the linear layers, the time at FAR over that at NEAR."""
    for contestant, causal, step in linear():
        row = about(contestant, causal, FAR, step, harness.MODES[0])
        call = contestant.group, contestant.name, causal, step, NEAR, FAR, TURNS
        found = harness.in_a_process(harness.KEEPS, "growth_of", *call)
        yield dict(row, near=NEAR, times=found)


def growth_of(group, name, causal, step, near, far, turns):
    found = find(group, name)
    functions = {
        length: function_of(found, causal, length, step, harness.MODES[0])
        for length in (near, far)
    }
    times = harness.in_turn(functions, turns)
    return times[far] / times[near]


def linear():
    for contestant in CONTESTANTS:
        if contestant.linear:
            yield from itertools.product([contestant], contestant.causal, STEPS)


def compiling():
    """Seconds of the first call less those of the second, at several lengths."""
    mode = "compile" if BACKEND == "torch" else "jit"
    for contestant, length in itertools.product(CONTESTANTS, COMPILED):
        if contestant.group in ("FLASH", "Flow") and contestant.products is not None:
            harness.forget_programs()
            function = function_of(contestant, True, length, "train", mode)
            first, second = [harness.seconds(function) for _ in range(2)]
            row = about(contestant, True, length, "train", mode)
            yield dict(row, seconds=first - second)


def memory():
    """Peak bytes, each from a process of its own."""
    for name, group in GROUPS.items():
        causal = group.causal[-1]
        for length, step in itertools.product(group.memory, group.steps):
            for contestant in members_of(name, causal, length):
                yield memory_of(contestant, causal, length, step)
    for contestant, causal, step in linear():
        for length in (NEAR, FAR) if step == "train" else ():
            yield memory_of(contestant, causal, length, step)


def memory_of(contestant, causal, length, step):
    row = about(contestant, causal, length, step, harness.MODES[0])
    call = contestant.group, contestant.name, causal, length, step
    return dict(row, bytes=harness.in_a_process(harness.RETURNS, "peak_of", *call))


def peak_of(group, name, causal, length, step):
    function = function_of(find(group, name), causal, length, step, harness.MODES[0])
    return harness.peak_bytes(function)


def find(group, name):
    (found,) = [c for c in CONTESTANTS if (c.group, c.name) == (group, name)]
    return found


def importing():
    """Seconds that `import keras_flash` takes after `import keras`."""
    yield dict(seconds=harness.import_seconds("keras", "keras_flash", TURNS))


PARTS = {part.__name__: part for part in (times, growth, compiling, memory, importing)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=list(PARTS), help="one of them alone")
    parser.add_argument("--group", choices=list(GROUPS), help="rows of one alone")
    parser.add_argument("--smoke", action="store_true", help="tiny, to see it run")
    parser.add_argument("--output", type=pathlib.Path, default=harness.RESULTS)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        harness.in_child(arguments.child, [growth_of, peak_of])
        return
    if arguments.smoke:
        make_tiny()
    if arguments.group:
        CONTESTANTS[:] = [c for c in CONTESTANTS if c.group == arguments.group]
    for part in [arguments.part] if arguments.part else PARTS:
        # A smoke test sees all times, which every contestant has, and else one row.
        count = 1 if arguments.smoke and part != "times" else None
        rows = itertools.islice(PARTS[part](), count)
        harness.write(part, rows, arguments.output, arguments.group)


def make_tiny():
    global FAR, NEAR, COMPILED, TURNS, SECONDS, PRODUCTS, REMAT_LAYERS
    FAR, NEAR, COMPILED, PRODUCTS = 64, 32, [32], [32]
    TURNS, SECONDS, REMAT_LAYERS = 1, 0.0, 1
    harness.MODES = harness.MODES[:1]
    for name, group in GROUPS.items():
        GROUPS[name] = dataclasses.replace(
            group, lengths=(32,) * bool(group.lengths), memory=(32,)
        )


if __name__ == "__main__":
    main()
