"""Scores all of Shakespeare as one sequence, streamed in pieces.

    python examples/read_a_book.py                # about ten minutes on two cores
    python examples/read_a_book.py --lengths 9000 # a smoke run

The model is the demo's, trained at a length of 512. Bits a byte and peak memory after
64 KB, 512 KB and the whole text, each in a process of its own: memory stays flat. A
pass over the first 64 KB in one call gives the same figure with more memory.
examples/README.md has the numbers to expect.
"""

import argparse
import json
import math
import os
import pathlib
import resource
import subprocess
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "saved_models" / "shakespeare_flash" / "model.keras"
PIECE = 4_096  # bytes in a piece
LENGTHS = (64 * 1024, 512 * 1024, None)  # None: the whole text


def memory():
    """Peak memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def score(length, parallel):
    """Bits a byte of the first `length` bytes, and the memory that it took."""
    import keras
    import language_model
    import numpy as np

    import keras_flash

    text = np.concatenate(language_model.load_text())
    text = text[:length].astype("int32")
    model = keras.saving.load_model(MODEL, compile=False)
    inputs, targets = text[None, :-1], text[None, 1:]

    def bits(logits, targets):
        """The sum over the bytes of a piece."""
        losses = keras.losses.sparse_categorical_crossentropy(
            targets, logits, from_logits=True
        )
        return float(keras.ops.sum(losses)) / math.log(2)

    before = memory()
    if parallel:
        total = bits(model.predict_on_batch(inputs), targets)
    else:
        streaming = keras_flash.StreamingModel(
            model, jit_compile=keras.backend.backend() != "torch"
        )
        state, total = streaming.get_initial_state(batch_size=1), 0.0
        for start in range(0, inputs.shape[1], PIECE):
            piece = inputs[:, start : start + PIECE]
            count = piece.shape[1]  # the last piece is padded: one shape, one program
            piece = np.pad(piece, ((0, 0), (0, PIECE - count)))
            count_tensor = keras.ops.convert_to_tensor(count, dtype="int32")
            logits, state = streaming.stream(piece, state, length=count_tensor)
            logits = keras.ops.convert_to_numpy(logits)[:, :count]
            total += bits(logits, targets[:, start : start + count])
    return dict(
        bytes=len(text),
        bits=total / inputs.shape[1],
        megabytes=memory() - before,
    )


def in_a_process(length, parallel=False):
    command = [sys.executable, __file__, "--score", json.dumps([length, parallel])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--score", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.score:
        print(json.dumps(score(*arguments.score)))
        return
    print("| bytes | pass | bits a byte | peak memory, MB above the start |")
    print("|---|---|---|---|")
    for length in arguments.lengths:
        passes = [("streamed", False)]
        if length == arguments.lengths[0]:
            passes.append(("one call", True))
        for name, parallel in passes:
            row = in_a_process(length, parallel)
            print(
                f"| {row['bytes']:,} | {name} | {row['bits']:.4f} "
                f"| {row['megabytes']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
