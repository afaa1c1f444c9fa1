"""The twins of mistakes with masks as arrays or moved, with packed texts, and with caps that come last, see `twins`.

Most are calls with another mask, made number by number.
"""

from functools import partial

import numpy as np
from planted import Call

import mha

from . import by_hand
from .by_hand import argument, both, exponents, port

PLAIN = {"num_hiddens": 24, "num_heads": 4, "bias": True}
CAPPED = PLAIN | {"softcap": 1.5}
B, H, Q, K = 3, 4, 5, 7
LENGTHS = [4, 7, 5]
MASK = np.random.default_rng(9).random((B, 1, Q, K)) < 0.6
KEYS = np.random.default_rng(10).random((B, 1, 1, K)) < 0.6
BIAS = np.random.default_rng(12).normal(size=(B, 1, Q, K))
OF_HEADS = np.random.default_rng(13).normal(size=(1, B, Q, K))
TWINS = {}
add = partial(by_hand.add, TWINS)
NOTHING = {"mask": None, "valid_lens": None, "causal": False, "segments": None, "key_segments": None}


def pairs(seen, heads=H, queries=Q):
    """A mask (B, heads, queries, K), number by number; seen: of sample, head, query and key."""
    return np.array([[[[bool(seen(b, h, i, j)) for j in range(K)] for i in range(queries)] for h in range(heads)]
                     for b in range(B)])  # fmt: skip


def seeing(seen, heads=H, queries=Q, **more):
    """A call in which just these pairs are seen."""
    return argument(**NOTHING | {"mask": pairs(seen, heads, queries)} | more)


def padded(b, j):
    return j >= LENGTHS[b]


joint = Call(PLAIN, {"mask": pairs(lambda b, h, i, j: j <= i and not padded(b, j), 1, K)}, Q=K)
both_given = Call(PLAIN, {"mask": MASK, "valid_lens": np.array(LENGTHS)})
ordered = Call(PLAIN, {"valid_lens": np.array(LENGTHS), "causal": True}, Q=K)
in_bias = Call(PLAIN, {"score_bias": np.where(MASK, BIAS, -np.inf)})

add("the mask is inverted", joint, **{
    "that of the padding": seeing(lambda b, h, i, j: j <= i and padded(b, j), queries=K)})  # fmt: skip
add("the mask is inverted", ordered, **{
    "all of it": seeing(lambda b, h, i, j: j > i or padded(b, j), queries=K)})  # fmt: skip
add("the mask is ignored", joint, **{"that of the padding": seeing(lambda b, h, i, j: j <= i, queries=K)})
add("the mask is ignored", in_bias, **{"that of the bias": argument(score_bias=np.where(MASK, BIAS, 0))})
add("the mask is moved", ordered, **{
    "of the one before, all of it":
        seeing(lambda b, h, i, j: (j - 1) % K <= i and not padded(b, (j - 1) % K), queries=K),
    "of the one after, all of it":
        seeing(lambda b, h, i, j: (j + 1) % K <= i and not padded(b, (j + 1) % K), queries=K)})  # fmt: skip
add("the padding mask is on the axis of queries", joint, **{
    "that of the padding": seeing(lambda b, h, i, j: j <= i and not padded(b, i), queries=K)})  # fmt: skip
add("the padding mask is on the axis of queries", ordered, **{
    "all of it is transposed": seeing(lambda b, h, i, j: i <= j and not padded(b, i), queries=K)})  # fmt: skip

OF_BEFORE, OF_AFTER = [6, 0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 0]  # whose mask each of the seven keys has
add("the mask is moved", Call(PLAIN, {"mask": MASK}), **{
    "of the one before": argument(mask=MASK[..., OF_BEFORE]),
    "of the one after": argument(mask=MASK[..., OF_AFTER])})  # fmt: skip
add("the window is symmetric", Call(PLAIN | {"window": (3, 0)}, {"causal": True, "offset": 1}), **{
    "and causal order is ignored": both({"window": (3, 3)}, {"causal": False})})  # fmt: skip

# Which of the samples' masks a head or a query has

SIX = {"num_hiddens": 24, "num_heads": 6, "bias": True}


def of_row(b, h, heads=H):
    """Whose mask is in row b * heads + h, where the rows are all samples of the first head, then of the next."""
    return (b * heads + h) % B


add("the mask is tiled, not repeated", Call(PLAIN, {"mask": MASK}),
    seeing(lambda b, h, i, j: MASK[of_row(b, h), 0, i, j]))  # fmt: skip
add("the mask is tiled, not repeated", both_given, **{
    "of the mask alone": seeing(lambda b, h, i, j: MASK[of_row(b, h), 0, i, j] and not padded(b, j))})  # fmt: skip
groups = Call(PLAIN | {"num_key_value_heads": 2}, {"mask": MASK})
add("the mask is tiled, not repeated", groups, **{
    "of heads of keys": seeing(lambda b, h, i, j: MASK[of_row(b, h // 2, 2), 0, i, j])})  # fmt: skip
add("all samples have the mask of the first", both_given,
    seeing(lambda b, h, i, j: MASK[0, 0, i, j] and not padded(0, j)), **{
        "of the mask alone": seeing(lambda b, h, i, j: MASK[0, 0, i, j] and not padded(b, j))})  # fmt: skip
three, threes = PLAIN | {"num_heads": 3}, SIX | {"num_key_value_heads": 3}
twos = SIX | {"num_key_value_heads": 2}
over = "the mask is broadcast over another axis"
add(over, Call(three, {"mask": MASK}), **{"over heads": seeing(lambda b, h, i, j: MASK[h, 0, i, j], 3)})
add(over, Call(threes, {"mask": MASK}), **{
    "over groups of heads": seeing(lambda b, h, i, j: MASK[h // 2, 0, i, j], 6)})  # fmt: skip
add(over, Call(twos, {"mask": MASK}), **{
    "over the heads of a group": seeing(lambda b, h, i, j: MASK[h % 3, 0, i, j], 6)})  # fmt: skip
add(over, Call(PLAIN, {"mask": KEYS}, Q=3), **{
    "over queries": seeing(lambda b, h, i, j: KEYS[i, 0, 0, j], 1, 3)})  # fmt: skip
add(over, Call(three, {"mask": MASK.swapaxes(0, 1)}), **{
    "heads over samples": seeing(lambda b, h, i, j: MASK[b, 0, i, j], 3)})  # fmt: skip
add("masks are joined by or, not and", ordered, seeing(lambda b, h, i, j: j <= i or not padded(b, j), queries=K))


def biased(number, heads=H, queries=Q, **more):
    """A call with another bias; number: of sample, head, query and key."""
    return argument(score_bias=np.array(
        [[[[number(b, h, i, j) for j in range(K)] for i in range(queries)] for h in range(heads)] for b in range(B)]
    ), **more)  # fmt: skip


tiled, axes = "the bias is tiled, not repeated", "the bias is broadcast over another axis"
add(tiled, Call(PLAIN, {"score_bias": BIAS}), biased(lambda b, h, i, j: BIAS[of_row(b, h), 0, i, j]))
add(tiled, Call(groups.options, {"score_bias": BIAS}), **{
    "of heads of keys": biased(lambda b, h, i, j: BIAS[of_row(b, h // 2, 2), 0, i, j])})  # fmt: skip
add(tiled, Call(three, {"score_bias": OF_HEADS, "mask": MASK}), **{
    "with the mask": biased(lambda b, h, i, j: OF_HEADS[0, (b * 3 + h) // B, i, j], 3,
                            mask=pairs(lambda b, h, i, j: MASK[of_row(b, h, 3), 0, i, j], 3))})  # fmt: skip
add(axes, Call(three, {"score_bias": BIAS}), **{"over heads": biased(lambda b, h, i, j: BIAS[h, 0, i, j], 3)})
add(axes, Call(threes, {"score_bias": BIAS}), **{
    "over groups of heads": biased(lambda b, h, i, j: BIAS[h // 2, 0, i, j], 6)})  # fmt: skip
add(axes, Call(twos, {"score_bias": BIAS}), **{
    "over the heads of a group": biased(lambda b, h, i, j: BIAS[h % 3, 0, i, j], 6)})  # fmt: skip
add(axes, Call(PLAIN, {"score_bias": BIAS[:, :, :1]}, Q=3), **{
    "over queries": biased(lambda b, h, i, j: BIAS[i, 0, 0, j], queries=3)})  # fmt: skip
add(axes, Call(three, {"score_bias": OF_HEADS}), **{
    "heads over samples": biased(lambda b, h, i, j: OF_HEADS[0, b, i, j], 3)})  # fmt: skip

# Caps that come after the mask

BENT = np.random.default_rng(14).normal(size=(1, H, Q, K))
capped = Call(CAPPED, {"valid_lens": np.array(LENGTHS), "causal": True, "offset": 1, "score_bias": BENT})


def cap_of(late, partly):
    """A port that caps after the mask, or that of the lengths alone; late: after the bias, too."""

    def bias(self, scores, given):
        self.given = given
        return scores + given if late else scores

    def softmax(self, scores, seen):
        hidden = np.where(self.kept if partly else seen, scores, -np.inf)
        numbers = 1.5 * np.tanh(hidden / 1.5) + (0 if late else self.given)
        return exponents(np.where(seen, numbers, -np.inf) if partly else numbers)

    lengths = {"lengths": by_hand.lengths_kept} if partly else {}
    return port(cap=lambda self, scores: scores, bias=bias, softmax=softmax, **lengths)


part = "in lengths and mask alone"
add("hidden scores are capped", capped, **{part: cap_of(False, True)})
add("the cap comes after the bias and the mask", capped, cap_of(True, False), **{part: cap_of(True, True)})

# Texts that are packed into a row, with padding in front of those of the first sample

TEXTS = [[-1, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1]]
PLACES = [[-1, 0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 0, 1]]
BOTH = {"segments": np.array(TEXTS), "key_segments": np.array(TEXTS), "causal": True}
AT = {"positions": np.array(PLACES), "key_positions": np.array(PLACES)}
ROTARY = PLAIN | {"rotary": mha.Rotary(6, 50.0)}
packed = Call(PLAIN, BOTH, Q=K)
WITHOUT = {"positions": None, "key_positions": None}


def same_text(b, i, j):
    return TEXTS[b][i] == TEXTS[b][j] >= 0


def of_text(seen, **more):
    return seeing(lambda b, h, i, j: seen(b, i, j), 1, K, **more)


def beside(by):
    """Each token has the text of its neighbour."""
    return lambda b, i, j: j <= i and same_text(b, *(min(max(at - by, 0), K - 1) for at in (i, j)))


def turned_anew(by_place):
    """Positions that begin again with each text, padding too, and order by rows or by these."""
    anew = np.array([[0, *PLACES[0][1:]], *PLACES[1:]])
    return of_text(lambda b, i, j: anew[b, j] <= anew[b, i] if by_place else j <= i,
                   positions=anew, key_positions=anew)  # fmt: skip


add("the segments are ignored", packed, **{
    "but padding is hidden": of_text(lambda b, i, j: j <= i and TEXTS[b][j] >= 0)})  # fmt: skip
leak = "texts see those before them"
shown = Call(PLAIN, BOTH | {name: np.abs(X) for name, X in AT.items()}, Q=K)  # positions hide nothing
add(leak, shown, of_text(lambda b, i, j: j <= i), **{
    "but padding is hidden": of_text(lambda b, i, j: j <= i and TEXTS[b][j] >= 0)})  # fmt: skip
add(leak, Call(ROTARY, shown.arguments, Q=K), **{
    "and the rotation goes by rows": of_text(lambda b, i, j: j <= i, **WITHOUT)})  # fmt: skip
add(leak, Call(ROTARY, BOTH, Q=K), **{"where positions begin again": turned_anew(False)})
add(leak, packed, **{"in the order of positions that begin again": turned_anew(True)})
add("texts are kept apart", Call(PLAIN, {"causal": True} | AT, Q=K),
    of_text(lambda b, i, j: j <= i and same_text(b, i, j), **AT))  # fmt: skip
add(
    "texts begin beside their first token",
    packed,
    **{"one later": of_text(beside(1)), "one earlier": of_text(beside(-1))},
)
add("segment 0 is padding", packed, of_text(lambda b, i, j: j <= i and same_text(b, i, j) and TEXTS[b][j] > 0))
