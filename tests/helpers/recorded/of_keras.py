"""The decoder in Keras."""

import keras
from keras import ops

from mha import parity
from recorded import EPS, LAYERS, WRONG_EPS, D, M, V, attend, d, tokens, weights

BACKEND = "tensorflow"
PATHS = "layers_.{}.attend", "last"


class Attention(keras.layers.Layer):
    scale = d**-0.5

    def __init__(self):
        super().__init__()
        # Keys first: neither the order nor the names of the three are those of other frameworks.
        self.to_keys, self.to_values, self.to_queries, self.out = (
            keras.layers.Dense(D, use_bias=False) for _ in range(4)
        )

    def call(self, x):
        k, v, q = self.to_keys(x), self.to_values(x), self.to_queries(x)
        return self.out(attend(ops, ops.softmax, q, k, v, self.scale))


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = (keras.layers.LayerNormalization(epsilon=EPS) for _ in range(2))
        self.attend, self.wide = Attention(), keras.layers.Dense(M, use_bias=False)
        self.narrow = keras.layers.Dense(D, use_bias=False)

    def call(self, x):
        x = x + self.attend(self.norm_1(x))
        return x + self.narrow(ops.gelu(self.wide(self.norm_2(x)), approximate=True))


class Decoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.table, self.last = keras.layers.Embedding(V, D), keras.layers.LayerNormalization(epsilon=EPS)
        self.layers_, self.out = [Block() for _ in range(LAYERS)], keras.layers.Dense(V, use_bias=False)

    def call(self, ids):
        x = self.table(ids)
        for block in self.layers_:
            x = block(x)
        return self.out(self.last(x))


def recorded(mistake="", path=None, **options):
    """A record of one call."""
    made, found = Decoder(), weights()
    made(tokens())
    made.table.set_weights([found["embed"]])
    made.out.set_weights([found["head"]])
    made.last.set_weights([found["norm.scale"], found["norm.bias"]])
    for at, block in enumerate(made.layers_):
        attention = block.attend
        places = {"q": attention.to_queries, "k": attention.to_keys, "v": attention.to_values, "o": attention.out}
        for name, module in (places | {"up": block.wide, "down": block.narrow}).items():
            module.set_weights([found[f"{at}.{name}"]])
        for name, module in {"before": block.norm_1, "after": block.norm_2}.items():
            module.set_weights([found[f"{at}.{name}.scale"], found[f"{at}.{name}.bias"]])
    if mistake == "scale":
        made.layers_[1].attend.scale = 1.0
    elif mistake == "eps":
        made.layers_[1].norm_2.epsilon = WRONG_EPS
    with parity.record(made, path, **options) as record:
        made(tokens())
    return record
