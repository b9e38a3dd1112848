"""Kernels of one score."""

import math


def relu_squared(x):
    return max(x, 0.0) ** 2


def laplace(x):
    return 0.5 * (
        1
        + math.erf((x - math.sqrt(0.5)) / (math.sqrt(1 / (4 * math.pi)) * math.sqrt(2)))
    )


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def silu(x):
    return x * sigmoid(x)


KERNELS = {"relu_squared": relu_squared, "laplace": laplace, "sigmoid": sigmoid}
