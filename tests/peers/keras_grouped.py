"""`keras.layers.GroupQueryAttention`: as `MultiHeadAttention` there, with fewer heads of keys and values."""

import keras

from peers.keras import run  # noqa: F401


def new(shapes=((2, 3, 11), (2, 5, 17), (2, 5, 13)), **options):
    """shapes: of queries, values and keys; without them the layer is not built."""
    random = keras.initializers.RandomNormal(seed=5)
    layer = keras.layers.GroupQueryAttention(
        **{"head_dim": 4, "num_query_heads": 6, "num_key_value_heads": 2, "bias_initializer": random} | options
    )
    if shapes:
        layer.build(*shapes)
    return layer
