"""Draw the canonical weights of a new layer from a seed."""

import numpy as np

from mha.core.options.config import Config, numpy_dtype, shapes


def initial(config: Config, seed: int) -> dict[str, np.ndarray]:
    """Draw Glorot-uniform kernels, biases of 0 and scales of 1, the same for a seed on every backend, bit for bit.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010), eq. 16.
    """
    random = np.random.default_rng(seed)
    arrays = {}
    for name, shape in shapes(config).items():
        if name.endswith(".kernel"):
            limit = np.sqrt(6 / sum(shape))
            arrays[name] = random.uniform(-limit, limit, shape).astype(numpy_dtype(config.dtype))
        else:
            start = 1 if name.endswith(".scale") else 0
            arrays[name] = np.full(shape, start, numpy_dtype(config.dtype))
    return arrays
