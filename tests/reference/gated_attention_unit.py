import math

import numpy as np

from tests.reference.activations import KERNELS


def run_numbers(ids):
    """0, 0, 1, 1, ...: a new number wherever the id differs from the one before."""
    runs = [0]
    for before, now in zip(ids[:-1], ids[1:]):
        runs.append(runs[-1] + (now != before))
    return runs


def visible(b, t, s, mask, runs, causal):
    if mask is not None and not mask[b][s]:
        return False
    if runs is not None and runs[b][t] != runs[b][s]:
        return False
    return s <= t or not causal


def weights_of(scores, activation):
    """Weights of the visible scores of one query."""
    if activation != "softmax":
        return [KERNELS[activation](score) for score in scores]
    if not scores:
        return []
    largest = max(scores)
    exponentials = [math.exp(score - largest) for score in scores]
    return [value / sum(exponentials) for value in exponentials]


def gated_attention(
    queries,
    keys,
    values,
    bias=None,
    mask=None,
    segment_ids=None,
    causal=False,
    activation="relu_squared",
    normalization_length="visible",
):
    """`bias` is a function of the distance."""
    batch, length, key_dim = queries.shape
    runs = None if segment_ids is None else [run_numbers(row) for row in segment_ids]
    outputs = np.zeros((batch, length, values.shape[2]), "float64")
    for b in range(batch):
        for t in range(length):
            seen = [s for s in range(length) if visible(b, t, s, mask, runs, causal)]
            n = len(seen) if normalization_length == "visible" else normalization_length
            divisor = math.sqrt(key_dim) if activation == "softmax" else n
            scores = [
                float(queries[b, t] @ keys[b, s]) / divisor
                + (bias(s - t) if bias else 0.0)
                for s in seen
            ]
            for s, weight in zip(seen, weights_of(scores, activation)):
                outputs[b, t] += weight * values[b, s]
    return outputs
