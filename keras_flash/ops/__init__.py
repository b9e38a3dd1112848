"""The mathematics: tensors in, tensors out. Each file is one algorithm."""
