"""Initial weights are Glorot's: uniform up to sqrt(6 / (fan in + fan out))."""

import numpy as np
import pytest

import mha

# Worked out by hand: the sides of each kernel, and sqrt(6 / (in + out)). Both sides count, however they differ.
OPTIONS = {
    "num_hiddens": 6, "num_heads": 2, "bias": True, "query_size": 2, "key_size": 500, "value_size": 96,
    "key_dim": 50, "value_dim": 27,
}  # fmt: skip
LIMITS = {
    "W_q.kernel": ((2, 100), 0.24253562503633297),  # sqrt(1 / 17)
    "W_k.kernel": ((500, 100), 0.1),
    "W_v.kernel": ((96, 54), 0.2),
    "W_o.kernel": ((54, 6), 0.31622776601683794),  # sqrt(1 / 10)
    "attention.W_q.kernel": ((50, 50), 0.2449489742783178),  # sqrt(0.06)
    "attention.w_v.kernel": ((50, 1), 0.34299717028501764),  # sqrt(2 / 17)
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_kernels_with_unequal_sides(name):
    shape, limit = LIMITS[name]
    weights = mha.MultiHeadAttention(**OPTIONS, pooling="additive", dtype="float64", backend="numpy").weights
    kernel = weights[name]
    assert kernel.shape == shape
    largest = np.abs(kernel).max()
    assert largest <= limit
    # That all of n such numbers are below a share s of the limit has the probability s^n: 1e-9 for this s.
    assert largest >= limit * 1e-9 ** (1 / kernel.size)
    # Chebyshev: the mean square of n such numbers is limit^2 / 3, with a deviation of limit^2 * sqrt(4 / 45 / n).
    assert abs((kernel**2).mean() - limit**2 / 3) <= 5 * limit**2 * np.sqrt(4 / 45 / kernel.size)


def test_biases_are_zero():
    weights = mha.MultiHeadAttention(**OPTIONS, backend="numpy").weights
    assert not any(X.any() for name, X in weights.items() if name.endswith("bias"))
