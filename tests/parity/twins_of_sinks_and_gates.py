"""The twins of mistakes with sinks and with the output gate, see `twins`."""

import math
from functools import partial, partialmethod

import numpy as np
from planted import Call

from mha.parity.diagnosis.mistakes import of_softmax

from . import by_hand
from .by_hand import columns, option, port, weight

GROUPS = {"num_hiddens": 48, "num_heads": 6, "bias": True, "num_key_value_heads": 2}
LENGTHS = np.array([4, 0, 6])

sunk = Call(GROUPS | {"scale": 0.7, "softcap": 1.5, "sinks": True}, {"valid_lens": LENGTHS})
gated = Call(GROUPS | {"output_gate": "element"}, {"valid_lens": LENGTHS})
TWINS = {}
add = partial(by_hand.add, TWINS)

# Sinks

add("sinks are forgotten", sunk, by_hand.beside_sinks(
    lambda of_sink, of_keys: of_keys / np.maximum(1 - of_sink, 1e-9)[..., None]))  # fmt: skip
add("sinks are scaled", sunk, by_hand.resunk(lambda X: [0.7 * x for x in X]))
add("sinks are capped", sunk, by_hand.resunk(lambda X: [1.5 * math.tanh(x / 1.5) for x in X]))
add("sinks are left out of the maximum", sunk, port(softmax=by_hand.unshifted))
add("sinks pool a value", sunk, **{
    "that of the first key": by_hand.beside_sinks(partial(by_hand.pooled_with, 0)),
    "that of the last key": by_hand.beside_sinks(partial(by_hand.pooled_with, 6)),
    "with every weight one key further": by_hand.beside_sinks(
        lambda of_sink, of_keys: np.concatenate([of_sink[..., None], of_keys[..., :6]], -1))})  # fmt: skip
add("sinks of other heads", sunk, **{
    "reversed": by_hand.resunk(lambda X: X[::-1]),
    "as (r, g)": by_hand.resunk(lambda X: [X[3 * g + r] for r in range(3) for g in range(2)]),
    "as (r, g), the other way": by_hand.resunk(lambda X: [X[2 * r + g] for g in range(2) for r in range(3)]),
    "one head further": by_hand.resunk(lambda X: [X[5], *X[:5]]),
    "one head back": by_hand.resunk(lambda X: [*X[1:], X[0]]),
    "of the first head, for all": by_hand.resunk(lambda X: [X[0]] * 6),
    "one for the heads that share keys": by_hand.resunk(lambda X: [X[h // 3] for h in range(6)]),
    "that of h % G": by_hand.resunk(lambda X: [X[h % 2] for h in range(6)]),
})  # fmt: skip


def in_blocks(size, self, scores, seen):
    """Blocks one after the other, each with a sink of its own, if its query sees any of it."""
    sinks = np.exp(self.weights["sinks"])[:, None, None]
    total = np.zeros((*scores.shape[:3], 1))
    for at in range(0, scores.shape[3], size):
        some = seen[..., at : at + size]
        total += np.where(some.any(-1, keepdims=True), sinks, 0)
        total += np.where(some, np.exp(scores[..., at : at + size]), 0).sum(-1, keepdims=True)
    return np.where(seen, np.exp(scores), 0) / np.where(total == 0, 1, total)


long = Call(GROUPS | {"sinks": True}, {"valid_lens": np.array([1031, 90, 300])}, K=1031)
for size in of_softmax.SINK_BLOCKS:
    add("a sink counts once for each block", long, **{f"blocks of {size}": port(softmax=partialmethod(
        lambda self, size, scores, seen: in_blocks(size, self, scores, seen), size))})  # fmt: skip

# The output gate


def gated_last(self, pooled, queries):
    return self.project("W_o", self.merge(pooled)) * self.opened(self.project("W_g", queries))


def beside_queries(source):
    """Columns of W_q and W_g side by side; source: of a column there, the heads H and the width d."""

    def change(name, X, weights, config):
        if not name.startswith(("W_q", "W_g")):
            return X
        both = np.concatenate([weights[f"W_q.{name[4:]}"], weights[f"W_g.{name[4:]}"]], -1)
        first = 0 if name.startswith("W_q") else X.shape[-1]
        order = [source(first + at, config.num_heads, config.key_dim) for at in range(X.shape[-1])]
        return both[..., order]

    return weight(change)


def of_each_head(at, H, d):
    head, j = divmod(at, 2 * d)
    return head * d + (j if j < d else H * d + j - d)


def of_all_heads(at, H, d):
    head, j = divmod(at % (H * d), d)
    return head * 2 * d + j + (0 if at < H * d else d)


add("the output gate is left out", gated, option(output_gate=None))
add("the output gate comes after W_o", gated, port(finish=gated_last))
add("the output gate is of another function", gated, **{
    "softmax over the features of a head": port(opened=lambda self, gates: by_hand.exponents(gates)),
    "softmax over the heads": port(opened=lambda self, gates: by_hand.exponents(gates, 1)),
    "softplus": port(opened=lambda self, gates: np.log1p(np.exp(gates))),
    "tanh": port(opened=lambda self, gates: np.sinh(gates) / np.cosh(gates)),
})  # fmt: skip
add("the output gate is of other heads", gated, **{
    "reversed": columns(("W_g",), lambda at, H, d, G: (H - 1 - at // d) * d + at % d),
    "as (r, g)": columns(("W_g",), by_hand.from_r_g),
    "as (r, g), the other way": columns(("W_g",), by_hand.from_g_r),
    "as (dv, H)": columns(("W_g",), by_hand.by_component),
    "as (dv, H), the other way": columns(("W_g",), by_hand.by_head),
})  # fmt: skip
add("the output gate is cut from queries otherwise", gated, **{
    "": beside_queries(of_each_head), "the other way": beside_queries(of_all_heads),
    "gate before q": beside_queries(lambda at, H, d: (at + H * d) % (2 * H * d)),
})  # fmt: skip
