"""ListOps: nested lists of operations, made here, and a Flowformer that solves them.

    python examples/listops.py             # a small setting, three seeds
    python examples/listops.py --paper     # the paper's: 5,000 steps at length 2,000
    python examples/listops.py --publish   # and saves the figures
    python examples/listops.py --steps 2   # a smoke run

An expression as `[MAX 2 9 [MIN 4 7 ] 0 ]` has one digit as its value: ten classes.
The procedure is that of the Long Range Arena (Tay et al., 2021, section 2.2.1, after
Nangia and Bowman, 2018), written anew: a tree of depth at most 10, with 2 to 10
arguments a node, is kept where its number of tokens lies in a range.
`--paper` is the paper's model, optimizer and number of steps. Unlike there, expressions
do not come again (the published set has 96,000), and the attention is the paper's
equation: the authors' code for this task has another feature map, relu, and lets heads
compete.
examples/README.md has the numbers to expect.
"""

import argparse
import itertools
import os
import statistics
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import artefacts
import keras
import numpy as np

from keras_flash import FlowformerClassifier

OPERATORS = ("MIN", "MAX", "MED", "SM")  # SM: sum modulo 10
# Token ids: 0 is padding, then digits, operators, and the end of a list.
FIRST_DIGIT, FIRST_OPERATOR, END = 1, 11, 15
VOCABULARY_SIZE = 16
LIST_PROBABILITY = 0.25  # of a list as an argument, else a digit
MAX_DEPTH, MAX_ARGUMENTS = 10, 10
NUM_CLASSES = 10
SEEDS = (0, 1, 2)

# The paper's, and one for two cores.
PAPER = dict(
    lengths=(500, 2000), hidden_dim=512, num_heads=2, intermediate_dim=1024,
    batch_size=32, steps=5000, base_rate=0.005, warm_up=1000, test=2000,
)  # fmt: skip
SMALL = dict(
    lengths=(10, 60), hidden_dim=128, num_heads=2, intermediate_dim=256,
    batch_size=32, steps=1000, base_rate=0.014, warm_up=200, test=2000,
)  # fmt: skip


def grow(generator, depth, room):
    """Token ids of a tree and its value, or None where it needs more than `room`."""
    if depth == MAX_DEPTH or (depth > 1 and generator.random() > LIST_PROBABILITY):
        digit = int(generator.integers(10))
        return ([FIRST_DIGIT + digit], digit) if room >= 1 else None
    operator = int(generator.integers(len(OPERATORS)))
    tokens, values = [FIRST_OPERATOR + operator], []
    for _ in range(int(generator.integers(2, MAX_ARGUMENTS + 1))):
        argument = grow(generator, depth + 1, room - len(tokens) - 1)
        if argument is None:
            return None
        tokens += argument[0]
        values.append(argument[1])
    return tokens + [END], apply(operator, values)


def apply(operator, values):
    name = OPERATORS[operator]
    if name == "MIN":
        return min(values)
    if name == "MAX":
        return max(values)
    if name == "MED":
        return int(statistics.median(values))  # rounded down
    return sum(values) % 10


def expressions(seed, lengths):
    """Token ids and value of one expression after the other, without end."""
    generator = np.random.default_rng(seed)
    low, high = lengths
    while True:
        made = grow(generator, 1, high - 1)
        if made is not None and low < len(made[0]) < high:
            yield made


def batches(seed, lengths, batch_size):
    """Dicts of padded token ids and masks, and values, without end."""
    stream = expressions(seed, lengths)
    while True:
        rows, values = zip(*(next(stream) for _ in range(batch_size)))
        ids = np.zeros((batch_size, lengths[1]), "int32")
        for row, tokens in zip(ids, rows):
            row[: len(tokens)] = tokens
        mask = (ids > 0).astype("int32")
        yield {"inputs": ids, "padding_mask": mask}, np.array(values, "int32")


def write(tokens):
    """As text."""
    names = [str(digit) for digit in range(10)] + [f"[{name}" for name in OPERATORS]
    return " ".join((["", *names, "]"])[token] for token in tokens)


@keras.saving.register_keras_serializable(package="listops")
class WarmUpThenInverseRoot(keras.optimizers.schedules.LearningRateSchedule):
    """`base min(1, step / warm_up) / sqrt(max(step, warm_up))`, as the paper's."""

    def __init__(self, base, warm_up):
        self.base, self.warm_up = base, warm_up

    def __call__(self, step):
        step = keras.ops.cast(step, "float32") + 1.0
        late = keras.ops.maximum(step, self.warm_up)
        ramp = keras.ops.minimum(step / self.warm_up, 1.0)
        return self.base * ramp / keras.ops.sqrt(late)

    def get_config(self):
        return dict(base=self.base, warm_up=self.warm_up)


def train(setting, seed, steps):
    """The accuracy on expressions that were not trained on."""
    keras.utils.set_random_seed(seed)
    lengths, batch_size = setting["lengths"], setting["batch_size"]
    model = FlowformerClassifier(
        NUM_CLASSES,
        num_layers=1,
        num_heads=setting["num_heads"],
        hidden_dim=setting["hidden_dim"],
        intermediate_dim=setting["intermediate_dim"],
        vocabulary_size=VOCABULARY_SIZE,
        pooling="cls",
    )
    on_tensorflow = keras.backend.backend() == "tensorflow"
    model.compile(
        keras.optimizers.AdamW(
            WarmUpThenInverseRoot(setting["base_rate"], setting["warm_up"]),
            beta_2=0.98,
            epsilon=1e-9,
            weight_decay=0.1,
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=on_tensorflow or "auto",
    )
    model.fit(
        batches(2 * seed + 2, lengths, batch_size),
        steps_per_epoch=min(steps, 100),
        epochs=max(steps // 100, 1),
        verbose=2,
    )
    count = setting["test"] // 100 if steps == setting["steps"] else 1
    test = batches(1, lengths, 100)  # of odd seed: none of the training's
    _, accuracy = model.evaluate(test, steps=count, verbose=0)
    return accuracy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paper", action="store_true", help="the paper's setting")
    parser.add_argument("--steps", type=int, help="stop early, to see it run")
    parser.add_argument("--publish", action="store_true", help="renew README.md")
    arguments = parser.parse_args()
    if arguments.publish and arguments.steps:
        parser.error("--publish goes with the whole run")
    setting = PAPER if arguments.paper else SMALL
    stream = expressions(1, (10, 40))
    tokens, value = next(stream)
    print(f"{write(tokens)} = {value}")
    made = itertools.islice(expressions(1, setting["lengths"]), setting["test"])
    values = [value for _, value in made]  # of the test set
    majority = 100 * np.bincount(values).max() / len(values)
    steps = setting["steps"] if arguments.steps is None else arguments.steps
    accuracies, start = {}, time.perf_counter()
    for seed in SEEDS if arguments.steps is None else SEEDS[:1]:
        accuracies[seed] = 100 * train(setting, seed, steps)
        print(f"seed {seed}: {accuracies[seed]:.2f}%", flush=True)
    minutes = (time.perf_counter() - start) / 60 / len(accuracies)
    alone = f"the most frequent value alone is {majority:.1f}%"
    expected = (
        f"{artefacts.by_seed(accuracies)}; {alone} "
        f"({artefacts.machine()}, {minutes:.1f} minutes a seed)"
    )
    print(expected)
    if arguments.publish:
        artefacts.write_figures(
            f"listops.py{' --paper' if arguments.paper else ''}",
            f"{artefacts.mean(accuracies)} (mean of three seeds); {alone}",
            expected,
        )


if __name__ == "__main__":
    main()
