"""`keras.layers.GroupQueryAttention`: as `MultiHeadAttention` there, with fewer heads of keys and values."""

import keras

from peers import renamed
from peers.keras import run, with_weights  # noqa: F401


def new(shapes=((2, 3, 11), (2, 5, 17), (2, 5, 13)), **options):
    """shapes: of queries, values and keys; without them the layer is not built."""
    random = keras.initializers.RandomNormal(seed=5)
    layer = keras.layers.GroupQueryAttention(
        **{"head_dim": 4, "num_query_heads": 6, "num_key_value_heads": 2, "bias_initializer": random} | options
    )
    if shapes:
        layer.build(*shapes)
    return layer


def make(options, weights, call):
    options = {"num_key_value_heads": options["num_heads"]} | options
    names = {"num_heads": "num_query_heads", "key_dim": "head_dim", "bias": "use_bias"}
    widths = dict.fromkeys(("num_hiddens", "query_size", "key_size", "value_size"))  # read off the inputs
    return with_weights(keras.layers.GroupQueryAttention(**renamed(options, **names, **widths)), weights, call)
