import math

import numpy as np


def rotate_vector(vector, position):
    """Pairs (i, i + d/2) turned by position * 10000^(-2i/d)."""
    half = len(vector) // 2
    turned = np.zeros(len(vector), "float64")
    for i in range(half):
        angle = position * 10_000.0 ** (-2 * i / len(vector))
        turned[i] = vector[i] * math.cos(angle) - vector[i + half] * math.sin(angle)
        turned[i + half] = vector[i + half] * math.cos(angle) + vector[i] * math.sin(
            angle
        )
    return turned


def rotate(x):
    """`(b, t, d)` at positions 0, 1, ..."""
    outputs = np.zeros(x.shape, "float64")
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            outputs[b, t] = rotate_vector(x[b, t], t)
    return outputs
