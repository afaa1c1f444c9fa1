"""The twins of mistakes with packed heads and with ALiBi's slopes, see `twins`."""

from functools import partial

import numpy as np
from planted import Call

from . import by_hand
from .by_hand import PROJECTIONS, argument, weight

PLAIN = {"num_hiddens": 24, "num_heads": 4, "bias": True}
GROUPS = {"num_hiddens": 48, "num_heads": 6, "bias": True, "num_key_value_heads": 2}

lengths = Call(PLAIN, {"valid_lens": np.array([4, 0, 6])})
groups = Call(GROUPS)
TWINS = {}
add = partial(by_hand.add, TWINS)

# One array of q, k and v


def of_kernels(config):
    """The heads of one array, by projection and number: all of q, then of k, then of v."""
    G = config.num_key_value_heads
    return [(name, head) for name, H in zip(PROJECTIONS, (config.num_heads, G, G), strict=False) for head in range(H)]


def of_groups(config):
    """The heads of one array group by group: those of q that share keys, these keys, and their values."""
    heads, G = [], config.num_key_value_heads
    r = config.num_heads // G
    for g in range(G):
        heads += [("W_q", r * g + at) for at in range(r)]
        heads += [("W_k", g), ("W_v", g)]
    return heads


def cut(stored, read, kinds=("kernel", "bias")):
    """Weights of one array whose heads are stored in one order and read in another."""

    def change(name, X, weights, config):
        role, kind = name.split(".")
        if role == "W_o" or kind not in kinds:
            return X
        d, found = config.key_dim, []
        for (own, _), (other, head) in zip(read(config), stored(config), strict=True):
            if own == role:
                found.append(weights[f"{other}.{kind}"][..., d * head : d * (head + 1)])
        return np.concatenate(found, -1)

    return weight(change)


add("packed heads are cut as packed kernels", lengths, cut(of_groups, of_kernels))
add("packed heads are cut as packed kernels", groups, **{
    "the other way": cut(of_kernels, of_groups),
    "in the biases alone": cut(of_groups, of_kernels, ["bias"]),
    "in the biases alone, the other way": cut(of_kernels, of_groups, ["bias"]),
})  # fmt: skip

# ALiBi, of six heads; by the paper the first four slopes are those of four heads, the others lie between

OF_NUMBER = [2 ** (-8 * h / 6) for h in range(1, 7)]
OF_PAPER = [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]


def biased(slopes):
    """ALiBi's bias (1, 6, 1, 7)."""
    return np.array([[[[slope * j for j in range(7)]] for slope in slopes]])


six, by_paper = (
    Call(options, {"score_bias": biased(slopes)})
    for options, slopes in ((PLAIN | {"num_heads": 6}, OF_NUMBER), (GROUPS, OF_PAPER))
)
add("another rule of ALiBi's slopes", six, **{
    "with every other slope last": argument(score_bias=biased(OF_PAPER))})  # fmt: skip
add("another rule of ALiBi's slopes", by_paper, **{
    "as of a power of 2": argument(score_bias=biased(OF_NUMBER))})  # fmt: skip
add("ALiBi's slopes of other heads", by_paper, **{how: argument(score_bias=biased(slopes)) for how, slopes in {
    "reversed": [1 / 8, 1 / 2, 1 / 256, 1 / 64, 1 / 16, 1 / 4],
    "one head further": [1 / 16, 1 / 64, 1 / 256, 1 / 1024, 1 / 4, 1 / 16],
    "of half as many heads, again": [1 / 16, 1 / 256, 1 / 4] * 2,
    "of the heads of keys": [1 / 16] * 3 + [1 / 256] * 3,
}.items()})  # fmt: skip
add("ALiBi's slopes of other heads", six, **{how: argument(score_bias=biased(slopes)) for how, slopes in {
    "one head back": [2 ** (-8 * h / 6) for h in range(6)],
    "of twice as many heads": [2 ** (-8 * h / 12) for h in range(1, 7)],
}.items()})  # fmt: skip
