"""The twins of mistakes with the rotation of a part of a head, its scaling and permuted columns, see `twins`."""

from functools import partial

import numpy as np
from planted import Call
from ports import Port

import mha

from . import by_hand
from .by_hand import columns, frequencies, option, port

GROUPS = {"num_hiddens": 48, "num_heads": 6, "bias": True, "num_key_value_heads": 2}
part = Call(GROUPS | {"scale": 0.7, "rotary": mha.Rotary(6, 50.0)}, {"offset": 2})
unscaled = Call(GROUPS | {"rotary": mha.Rotary(6, 50.0)}, {"offset": 2})
share = Call(GROUPS | {"rotary": mha.Rotary(8, 50.0, frequencies=(1.0, 50**-0.25, 0.0, 0.0))}, {"offset": 2})
own = Call(GROUPS | {"rotary": mha.Rotary(6, 50.0, frequencies=(1.0, 0.3, 0.02))}, {"offset": 2})
WIDE = {"num_hiddens": 72, "num_heads": 12, "num_key_value_heads": 2, "key_dim": 24, "bias": True}
wide = Call(WIDE | {"rotary": mha.Rotary(base=50.0)}, {"offset": 2})
narrow = Call(WIDE | {"rotary": mha.Rotary(6, 50.0)}, {"offset": 2})
TWINS = {}
add = partial(by_hand.add, TWINS)

# Pairs, one by one


def pairs(first, second, angles):
    """A port that turns these pairs of components by these angles at position 1."""

    def turn(self, role, X, places):
        Y = X.copy()
        for a, b, angle in zip(first, second, angles, strict=True):
            turned = (X[..., a] + 1j * X[..., b]) * np.exp(1j * places * angle)[:, None]  # (B, H, T)
            Y[..., a], Y[..., b] = turned.real, turned.imag
        return Y

    return port(turn=turn)


OF_SIX, OF_EIGHT, OF_FOUR = (by_hand.by_base(50.0, n, width) for n, width in ((3, 6), (3, 8), (2, 4)))
add("pairs of the whole head", part, pairs([0, 1, 2], [4, 5, 6], OF_SIX), **{
    "with its frequencies": pairs([0, 1, 2], [4, 5, 6], OF_EIGHT),
    "the last of them": pairs([1, 2, 3], [5, 6, 7], OF_SIX)})  # fmt: skip
add("pairs of the part that turns", share, pairs([0, 1], [2, 3], OF_EIGHT[:2]), **{
    "with its frequencies": pairs([0, 1], [2, 3], OF_FOUR)})  # fmt: skip
add("frequencies of the part that turns", share, pairs([0, 1], [4, 5], OF_FOUR))
add("the last pairs turn", share, pairs([2, 3], [6, 7], OF_EIGHT[:2]))


def without_rest(self, role, X, places):
    return Port.turn(self, role, X, places) * (np.arange(8) < 6)


def rest_first(one):
    def turn(self, role, X, places):
        Y = Port.turn(self, role, X, places)
        return np.concatenate([Y[..., 6:], Y[..., :6]], -1) if role == one else Y

    return port(turn=turn)


def last_of(one):
    def turn(self, role, X, places):
        first = 2 if role == one else 0
        Y = X.copy()
        Y[..., first : first + 6] = Port.turn(self, role, X[..., first : first + 6], places)
        return Y

    return port(turn=turn)


add("components that do not turn are dropped", part, port(turn=without_rest))
add("components that do not turn are dropped", unscaled, **{
    "and scaled by the width of the others": port(turn=without_rest, scale=6**-0.5)})  # fmt: skip
add("components that turn come last", part, **{"of queries": rest_first("q"), "of keys": rest_first("k")})
add("the last components turn", part, **{"of queries": last_of("q"), "of keys": last_of("k")})

# Scaling

SHARES = [1.0, 0.3 * 50 ** (1 / 3), 0.02 * 50 ** (2 / 3)]  # of the frequencies of the base
SLOWED = [(1 - share) / (1 - min(SHARES)) for share in SHARES]  # 0 = as before, 1 = by all of the factor
add("the scaling of frequencies is inverted", own, frequencies(
    lambda rotary, d: [X / share for X, share in zip(OF_SIX, SHARES, strict=True)]), **{
    "the factor, where it is gradual": frequencies(lambda rotary, d: [
        X * (1 - s) + X / min(SHARES) * s for X, s in zip(OF_SIX, SLOWED, strict=True)])})  # fmt: skip
add("frequencies are not inverted", part, option(rotary=mha.Rotary(6, 1 / 50)))
add("frequencies are not inverted", own, **{"but for the model's own scaling": frequencies(
    lambda rotary, d: [50 ** (i / 3) * share for i, share in enumerate(SHARES)])})  # fmt: skip

# Columns in another order


def moved(roles, *steps):
    """Weights whose columns are permuted in turn; steps: width of a block, pairs that change places, and how."""

    def source(at, H, d, G):
        for width, n, way in reversed(steps):
            at = way(n, at, 0, width, 0)
        return at

    return columns(roles, source)


def each(*steps):
    """Weights whose columns are permuted in turn, in blocks of W_q and in others of W_k."""
    of_q, of_k = ([(*block[role], way) for block, way in steps] for role in (0, 1))

    def source(at, H, d, G):
        for width, n, way in reversed(of_q if H == 12 else of_k):
            at = way(n, at, 0, width, 0)
        return at

    return columns(["W_q", "W_k"], source)


WAYS = {"halves to neighbours": by_hand.neighbours_of_halves, "neighbours to halves": by_hand.halves_of_neighbours}
BLOCKS = {  # the width of a block and the pairs in it, of W_q and of W_k, which have 288 and 48 columns
    "W_k as of H heads": (wide, (24, 12), (4, 2), ["W_k"]), "W_q as of G heads": (wide, (144, 72), (24, 12), ["W_q"]),
    "both as of 2H heads": (wide, (12, 6), (2, 1), None), "both as of H / 2 heads": (wide, (48, 24), (8, 4), None),
    "as of half as many heads": (wide, (48, 24), (48, 24), None),
    "as of twice as many heads": (wide, (12, 6), (12, 6), None),
    "as of heads of width D / H": (wide, (6, 3), (6, 3), None),
    "over the whole head": (narrow, (24, 12), (24, 12), None),
    "over the whole head of W_q": (narrow, (24, 12), (24, 12), ["W_q"]),
    "over the whole head of W_k": (narrow, (24, 12), (24, 12), ["W_k"]),
}  # fmt: skip
for which, (case, of_q, of_k, alone) in BLOCKS.items():
    right = (24, case.options["rotary"].dim // 2 if case is narrow else 12)
    for way, order in WAYS.items():
        back = next(other for other in WAYS.values() if other is not order)
        steps = {
            "": [((of_q, of_k), order)],
            ", for the right blocks": [((right, right), back), ((of_q, of_k), order)],
            ", and paired for it": [((of_q, of_k), order), ((right, right), back)],
        }
        for more, some in steps.items():
            made = each(*some) if alone is None else moved(
                alone, *[(*block[alone == ["W_k"]], how) for block, how in some])  # fmt: skip
            add("rotary components are permuted in other blocks", case, **{f"{which}: {way}{more}": made})
for way, order in WAYS.items():
    add("kernels are permuted without their biases", part, **{
        f"{way}, of {where}": moved(names, (8, 3, order)) for where, names in (
            ("W_q", ["W_q.kernel"]), ("W_k", ["W_k.kernel"]), ("W_q and W_k", ["W_q.kernel", "W_k.kernel"]))
    })  # fmt: skip
