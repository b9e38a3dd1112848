import math

import numpy as np

from tests.reference.gated_attention_unit import run_numbers
from tests.reference.gated_attention_unit import visible
from tests.reference.gated_attention_unit import weights_of


def mixed_chunk_attention(
    quadratic,
    linear,
    values,
    chunk_size,
    bias=None,
    mask=None,
    segment_ids=None,
    causal=False,
    activation="relu_squared",
    scale_scores=True,
    global_normalization="mean",
):
    """`bias` is a function of the distance."""
    batch, length, width = values.shape
    runs = None if segment_ids is None else [run_numbers(row) for row in segment_ids]
    outputs = np.zeros((batch, length, width), "float64")
    for b in range(batch):
        for t in range(length):
            chunk = t // chunk_size
            if quadratic is not None:
                queries, keys = quadratic
                seen = [
                    s
                    for s in range(length)
                    if s // chunk_size == chunk and visible(b, t, s, mask, runs, causal)
                ]
                divisor = chunk_size if scale_scores else 1
                if activation == "softmax":
                    divisor = math.sqrt(queries.shape[2])
                scores = [
                    float(queries[b, t] @ keys[b, s]) / divisor
                    + (bias(s - t) if bias else 0.0)
                    for s in seen
                ]
                for s, weight in zip(seen, weights_of(scores, activation)):
                    outputs[b, t] += weight * values[b, s]
            if linear is not None:
                queries, keys = linear
                seen = [
                    s
                    for s in range(length)
                    if (s // chunk_size < chunk or not causal)
                    and visible(b, t, s, mask, runs, causal)
                ]
                m = {"mean": len(seen), "chunk": chunk_size, "sum": 1}
                for s in seen:
                    weight = float(queries[b, t] @ keys[b, s]) / m[global_normalization]
                    outputs[b, t] += weight * values[b, s]
    return outputs
