"""The task of `examples/train.py` for each framework's own loop: digits to reverse, and the weights to start from."""

import numpy as np

B, T, V, D, H = 64, 7, 10, 32, 4  # samples of a batch, digits of a sample, kinds of digits, width, heads
rng = np.random.default_rng(0)
W_digits, W_places, W_head = (rng.normal(0, D**-0.5, shape).astype("float32") for shape in ((V, D), (T, D), (D, V)))
unseen = rng.integers(0, V, (1000, T))  # to count how many digits are right after training
epochs = np.random.default_rng(0).integers(0, V, (10, 20, B, T))  # 10 times 20 batches
