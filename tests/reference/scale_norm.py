import math

import numpy as np


def scale_norm(x, scale, epsilon=1e-6):
    outputs = np.zeros(x.shape, "float64")
    for index in np.ndindex(*x.shape[:-1]):
        row = [float(value) for value in x[index]]
        mean_square = sum(value * value for value in row) / len(row)
        for i, value in enumerate(row):
            outputs[index][i] = scale * value / math.sqrt(mean_square + epsilon)
    return outputs
