"""Time and memory of each layer, and of its peers, against the length.

    KERAS_BACKEND=torch python benchmarks/layers.py            # one backend
    KERAS_BACKEND=torch python benchmarks/layers.py --publish  # in README.md too
    python benchmarks/layers.py --smoke                        # tiny, to see it run

Batch 1, float32. A row is the median of at least TURNS calls of a forward pass or of a
step of training (forward, backward, AdamW). Ours, the peers and matrix products of
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

from keras_flash import FlowAttention
from keras_flash import GatedAttentionUnit
from keras_flash import MixedChunkAttention

LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
COMPARED = 4096  # the length of every mode and of memory
FAR = 65536  # of the linear layers, over the time and memory at NEAR
NEAR = 8192
TURNS, SECONDS = 5, 3.0  # the least of turns and of their time
PRODUCTS = [1024, 2048, 4096]  # sizes of the products that a rate is a share of
# Of the gated layers and their peers; EXPANDED is the width inside.
WIDTH, EXPANDED, KEY_DIM, CHUNK = 512, 1024, 128, 256
HEADS, FEED_FORWARD = 8, 1455  # of a transformer block as large as two FLASH layers
FLOW_WIDTH, FLOW_HEAD = 256, 32


@dataclasses.dataclass(frozen=True)
class Contestant:
    """What takes turns with the others of its group.

    Attributes:
        make: function of `causal` that gives a module.
        products: for ours, function of length and `causal`: operations of a forward
            pass, of matrix products alone.
        linear: whether it is measured at FAR.
        longest: the longest length, where the cost is quadratic.
    """

    group: str
    name: str
    make: typing.Callable
    products: typing.Callable = None
    linear: bool = False
    longest: int = LENGTHS[-1]
    causal: tuple = (False, True)


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


def attend(layer, **options):
    return peers.self_attention(layer, FLOW_WIDTH, **options)


CONTESTANTS = [
    Contestant(
        "FLASH",
        "MixedChunkAttention",
        flash,
        products=mixed_products,
        linear=True,
    ),
    Contestant(
        "GAU",
        "GatedAttentionUnit",
        lambda causal: GatedAttentionUnit(KEY_DIM, causal=causal),
        products=lambda length, causal: gated_products(length, length, causal),
        longest=8192,
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
        longest=4096,
    ),
    Contestant(
        "Flow",
        "plain Flow-Attention",
        lambda causal: peers.PlainCausalFlow(HEADS, FLOW_HEAD),
        longest=2048,
        causal=(True,),
    ),
    Contestant(
        "Model",
        "two FLASH layers",
        lambda causal: peers.residual([flash(causal), flash(causal)], WIDTH),
        causal=(True,),
    ),
    Contestant(
        "Model",
        "Transformer++",
        lambda causal: peers.transformer_block(WIDTH, HEADS, FEED_FORWARD, causal),
        causal=(True,),
        longest=8192,
    ),
]
if BACKEND == "torch":
    CONTESTANTS += [
        Contestant(
            "Model",
            "Transformer++ of torch",
            lambda causal: peers.torch_block(WIDTH, HEADS, FEED_FORWARD, causal),
            causal=(True,),
        ),
        *(
            Contestant(group, name, make, longest=longest)
            for group, name, make, longest in peers.published(WIDTH, KEY_DIM, CHUNK)
        ),
    ]


def make(contestant, causal):
    keras.utils.set_random_seed(0)
    module = contestant.make(causal)
    module(inputs(contestant, 16))  # builds
    return module


def inputs(contestant, length):
    width = FLOW_WIDTH if contestant.group == "Flow" else WIDTH
    return harness.normal(1, length, width)


def times():
    """Rows of seconds, at COMPARED in every mode and with shares."""
    groups = dict.fromkeys(c.group for c in CONTESTANTS)
    for group, causal, length in itertools.product(groups, (False, True), LENGTHS):
        members = [
            (contestant, make(contestant, causal))
            for contestant in CONTESTANTS
            if contestant.group == group
            and causal in contestant.causal
            and length <= contestant.longest
        ]
        for step in ("forward", "train") if members else ():
            yield from in_turn(members, causal, length, step)


def in_turn(members, causal, length, step):
    modes = harness.MODES if length == COMPARED else harness.MODES[:1]
    functions = harness.products(PRODUCTS) if length == COMPARED else {}
    for contestant, module in members:
        x = inputs(contestant, length)
        for mode in modes:
            function = harness.steps(module, mode)[step]
            functions[contestant.name, mode] = functools.partial(function, x)
    found = harness.in_turn(functions, TURNS, SECONDS)
    for contestant, _ in members:
        for mode in modes:
            seconds = found[contestant.name, mode]
            row = about(contestant, causal, length, step, mode)
            row.update(row="time", seconds=seconds)
            if length == COMPARED and contestant.products is not None:
                passes = 3 if step == "train" else 1
                rate = passes * contestant.products(length, causal) / seconds
                row["share"] = rate / harness.best_rate(found, PRODUCTS)
            yield row


def about(contestant, causal, length, step, mode):
    return dict(
        group=contestant.group,
        name=contestant.name,
        causal=causal,
        length=length,
        step=step,
        mode=mode,
    )


def growth():
    """Rows of the linear layers: the time at FAR over that at NEAR."""
    for contestant in CONTESTANTS:
        for causal in contestant.causal if contestant.linear else ():
            module = make(contestant, causal)
            for step in ("forward", "train"):
                mode = harness.MODES[0]
                function = harness.steps(module, mode)[step]
                found = harness.in_turn(
                    {
                        length: functools.partial(function, inputs(contestant, length))
                        for length in (NEAR, FAR)
                    },
                    TURNS,
                )
                row = about(contestant, causal, FAR, step, mode)
                yield dict(row, row="growth", times=found[FAR] / found[NEAR])


def memory():
    """Rows of peak bytes, each from a process of its own."""
    for number, contestant in enumerate(CONTESTANTS):
        lengths = LENGTHS if contestant.group == "Model" else [COMPARED]
        if contestant.linear:
            lengths = sorted({*lengths, NEAR, FAR})
        for causal, length, step in itertools.product(
            contestant.causal, lengths, ("forward", "train")
        ):
            if contestant.linear or length <= contestant.longest:
                arguments = [json.dumps([number, causal, length, step])]
                row = about(contestant, causal, length, step, harness.MEMORY_MODE)
                found = harness.in_a_process("--memory", *arguments)
                yield dict(row, row="memory", bytes=found)


def peak(number, causal, length, step):
    """Peak bytes of one call; runs in a process of its own."""
    contestant = CONTESTANTS[number]
    function = harness.steps(make(contestant, causal), harness.MEMORY_MODE)[step]
    x = inputs(contestant, length)
    return harness.peak_bytes(functools.partial(function, x))


def main():
    global LENGTHS, COMPARED, NEAR, FAR, TURNS, SECONDS, PRODUCTS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny, to see it run")
    parser.add_argument("--output", type=pathlib.Path, default=harness.RESULTS)
    parser.add_argument("--memory", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(peak(*arguments.memory))
        return
    rows = itertools.chain(times(), growth(), memory())
    if arguments.smoke:
        LENGTHS, COMPARED, NEAR, FAR, PRODUCTS = [32], 32, 32, 64, [32]
        TURNS, SECONDS, harness.MODES = 1, 0.0, harness.MODES[:1]
        rows = itertools.chain(times(), growth(), itertools.islice(memory(), 1))
    harness.write("layers", rows, arguments.output)


if __name__ == "__main__":
    main()
