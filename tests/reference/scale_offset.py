import numpy as np


def scale_offset(x, gamma, beta):
    outputs = np.zeros(x.shape, "float64")
    for index in np.ndindex(*x.shape):
        outputs[index] = x[index] * gamma[index[-1]] + beta[index[-1]]
    return outputs
