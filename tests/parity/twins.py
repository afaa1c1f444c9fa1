"""The table of twins: for each form of each known mistake a case, and what makes the same mistake by other means."""

import math
from functools import partial

import numpy as np
from planted import Call
from ports import Port

import mha
from mha.parity.diagnosis.mistakes import of_heads, of_norms, of_rotations, of_softmax, of_weights

from . import by_hand, twins_of_masks, twins_of_packs_and_slopes, twins_of_rotated_parts, twins_of_sinks_and_gates
from .by_hand import (
    PROJECTIONS,
    argument,
    columns,
    exponents,
    frequencies,
    lowest_added,
    of_base,
    of_places,
    option,
    port,
    scales,
    taken,
    untransposed,
    weighed,
    weight,
    without,
)

PLAIN = {"num_hiddens": 24, "num_heads": 4, "bias": True}
GROUPS = PLAIN | {"num_hiddens": 48, "num_heads": 6, "num_key_value_heads": 2}
MODERN = GROUPS | {"scale": 0.7, "softcap": 1.5, "qk_norm": mha.Norm("rms", 3e-3), "rotary": mha.Rotary(6, 50.0)}
OWN = PLAIN | {"rotary": mha.Rotary(6, 50.0, frequencies=(1.0, 0.3, 0.02))}
BIAS = np.random.default_rng(6).normal(size=(1, 6, 5, 7))
GATES = np.random.default_rng(7).normal(size=(3, 4))
MASK = np.random.default_rng(8).random((3, 1, 7, 7)) < 0.6
LENGTHS = np.array([4, 0, 6])

lengths = Call(PLAIN, {"valid_lens": LENGTHS})
square = Call(PLAIN, {"mask": MASK, "valid_lens": np.array([3, 6, 5])}, Q=7)
causal = Call(PLAIN, {"causal": True, "offset": 1})
later = Call(PLAIN, {"causal": True, "offset": 2})
window = Call(PLAIN | {"window": (3, 1)}, {"offset": 1})
groups = Call(GROUPS)
gates = Call(PLAIN, {"head_gates": GATES})
modern = Call(MODERN, {"offset": 2, "score_bias": BIAS})
layered = Call(MODERN | {"qk_norm": mha.Norm("layer", 3e-3)}, {"offset": 2})
of_all = Call(MODERN | {"qk_norm": mha.Norm("rms", 3e-3, over="all")}, {"offset": 2})
normed_last = Call(MODERN | {"qk_norm": mha.Norm("rms", 3e-3, after=True)}, {"offset": 2})
of_values = Call(GROUPS | {"value_norm": mha.Norm("rms", 3e-3)})
tempered = Call(PLAIN | {"temperature": mha.Temperature(0.4, 2)}, {"offset": [3, 0, 6]})
magnified = Call(PLAIN | {"rotary": mha.Rotary(4, 50.0, magnitude=1.3)}, {"offset": 2})
own = Call(OWN, {"offset": 2})
ending = Call(MODERN, {"offset": [508, 2, 3]})
far = Call(MODERN, {"offset": [9000, 4200, 700]})
many = Call(PLAIN, {"valid_lens": np.array([1031, 90, 300])}, K=1031)
masks = Call(PLAIN | {"window": (2, 0)}, {"valid_lens": LENGTHS, "causal": True})
PLACES = {"positions": [[4, 2, 3, 0, 1], [1, 1, 2, 2, 6], [3, 4, 5, 6, 9]], "key_positions": [3, 1, 0, 5, 4, 2, 6]}
chunks = Call(PLAIN | {"chunk": 3}, {"offset": 1})
in_window = Call(PLAIN | {"window": (1, 1)}, PLACES)
rotated = Call(PLAIN | {"rotary": mha.Rotary(6, 50.0)}, PLACES)
hidden = Call(PLAIN, {"key_positions": [[-1, -1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, -7], [1, 2, 3, 4, 5, 6, 7]]})
buckets = Call(PLAIN, {"score_bias": by_hand.of_distance(1, 5, 7, 2), "offset": 2})

# Of packed arrays
ORDERS = {", ".join(order): dict(zip(PROJECTIONS, order, strict=False)) for order in of_weights.ORDERS}
QK, KV = {"W_q": "W_k", "W_k": "W_q"}, {"W_k": "W_v", "W_v": "W_k"}
QKV = PROJECTIONS[:3]
TWINS = twins_of_sinks_and_gates.TWINS | twins_of_packs_and_slopes.TWINS | twins_of_masks.TWINS
TWINS |= twins_of_rotated_parts.TWINS
add = partial(by_hand.add, TWINS)

# NaN

add("rows without keys are NaN", lengths, weighed(lambda scores, seen: exponents(np.where(seen, scores, -np.inf))))


def overflowing(added, blank):
    """A port that rounds dot products to float16, in which they may be infinite, and scales them then."""

    def softmax(self, scores, seen):
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self.products.astype("float16").astype("float64") * self.scale
            low = scores + np.where(seen, 0, -np.inf) if added else np.where(seen, scores, -np.inf)
            weights = exponents(low)
        return np.nan_to_num(weights) if blank else weights

    def score(self, q, k):
        self.products = np.einsum("bhid,bhjd->bhij", q, k)
        return self.products * self.scale

    return port(score=score, softmax=softmax)


large = Call(PLAIN, {"valid_lens": np.array([4, 3, 6])}, times=400.0)
add("dot products overflow float16", large, **{
    f"{keys}{', and NaN becomes 0' * blank}": overflowing(added, blank) for blank in (False, True)
    for keys, added in (("of keys that are seen", False), ("of hidden keys, too", True))})  # fmt: skip
add("NaN in padding comes through", Call(PLAIN, {"valid_lens": [4, 5, 6]}, nan=True), port())

# Weights

for name in PROJECTIONS:
    add(f"{name}.kernel is not transposed", lengths, untransposed(name))
    add(f"{name}.bias is dropped", modern, without(name))
    inward, outward = (columns([name], source) for source in (by_hand.by_head, by_hand.by_component))
    add(f"the heads of {name} are interleaved", groups, inward, **{"the other way": outward})
add("the kernels of W_q, W_k and W_v are not transposed", lengths, untransposed(*QKV))
add("no kernel is transposed", lengths, untransposed(*PROJECTIONS))
add("the biases of W_q, W_k and W_v are dropped", modern, without(*QKV))
for how in dict(next(one for one in of_weights.OF_ORDERS_AND_BIASES if one.name == "biases are added twice").forms):
    again = [f"{name}.bias" for name in how.split(" and ")]
    add("biases are added twice", modern, **{how: weight(
        lambda name, X, *_, again=again: X + X if name in again else X)})  # fmt: skip
add("every bias is dropped", modern, without(*PROJECTIONS))
for mistake, names, order in (("Q and K are swapped", QK, (1, 0, 2)), ("K and V are swapped", KV, (0, 2, 1))):
    add(mistake, Call(PLAIN, Q=7), **{
        "kernels and biases": taken(names, names), "kernels": taken(names), "inputs": by_hand.of_inputs(*order),
    })  # fmt: skip
for order, names in ORDERS.items():
    add("packed biases in another order", lengths, **{order: taken(biases=names)})
    if names["W_k"] == "W_k" or all(a != b for a, b in names.items()) or order.split(", ")[1] == "W_k":
        add("packed kernels in another order", lengths, **{order: taken(names, names)})

for times in of_weights.TIMES:
    add("W_o.bias is added several times", lengths, **{
        f"{times} times": weight(lambda name, X, *_, n=times: sum([X] * n) if name == "W_o.bias" else X)})  # fmt: skip
add("W_o.bias is added several times", groups, **{"once for each head": port(
    merge=by_hand.split_pooled, project=by_hand.by_each_head)})  # fmt: skip

# Heads


def split_apart(self, X, heads):
    return np.stack([X[:, :, head::heads] for head in range(heads)], 1)  # (B, H, T, d)


def merge_apart(self, pooled):
    return np.stack([*pooled.swapaxes(0, 1)], -1).reshape(len(pooled), pooled.shape[2], -1)  # (B, Q, d*H)


add("the heads are interleaved", groups, **{
    "by the split": port(split=split_apart), "by the split and the merge": port(split=split_apart, merge=merge_apart),
    "in W_q, W_k, W_v": columns(QKV, by_hand.by_head), "in all four": columns(PROJECTIONS, by_hand.by_head),
    "in W_q, W_k, W_v, the other way": columns(QKV, by_hand.by_component),
    "in all four, the other way": columns(PROJECTIONS, by_hand.by_component),
})  # fmt: skip
add("the split lacks the permute", lengths, port(
    split=lambda self, X, heads: np.reshape(X.ravel(), (len(X), heads, X.shape[1], X.shape[2] // heads))))  # fmt: skip
add("the merge lacks the permute", lengths, port(
    merge=lambda self, X: np.reshape(X.ravel(), (len(X), X.shape[2], X.shape[1] * X.shape[3]))))  # fmt: skip
for how in dict(of_heads.OF_HEADS[-1].forms):
    heads = int(how.split()[0])
    width = math.lcm(heads, 3 if heads == 2 else 2)
    case = Call({"num_hiddens": 2 * width, "num_heads": 3 if heads == 2 else 2}, {"valid_lens": LENGTHS})
    other = {"num_heads": heads, "num_key_value_heads": heads, "key_dim": 2 * width // heads}
    add("another number of heads", case, **{how: option(**other, value_dim=2 * width // heads)})
add("heads of keys are tiled, not repeated", groups, port(share=by_hand.tiled, share_values=by_hand.tiled),
    alone=port(share=by_hand.tiled))  # fmt: skip
add("heads of values are tiled, not repeated", groups, port(share_values=by_hand.tiled))
add("heads of queries are split as (r, g)", groups, columns(["W_q"], by_hand.from_r_g),
    **{"the other way": columns(["W_q"], by_hand.from_g_r)})  # fmt: skip
add("heads are merged as (r, g)", groups, by_hand.merged(by_hand.from_g_r),
    **{"the other way": by_hand.merged(by_hand.from_r_g)})  # fmt: skip
add("gates of other heads", gates, **{
    "reversed": argument(head_gates=GATES[:, [3, 2, 1, 0]]),
    "one head further": argument(head_gates=GATES[:, [3, 0, 1, 2]]),
})  # fmt: skip
add("gates are forgotten", gates, argument(head_gates=None))

# Scales and caps

add("no scale", modern, option(scale=1.0))
add("the scale of D for that of d", modern, option(scale=1 / math.sqrt(48)))
add("the scale is applied twice", modern, option(scale=0.49))
add("the scale lacks its root", modern, option(scale=1 / 8))
add("the bias of W_q is not scaled", lengths, port(
    project=lambda self, name, X: Port.project(self, name, X * self.scale if name == "W_q" else X),
    score=lambda self, q, k: np.einsum("bhid,bhjd->bhij", q, k)))  # fmt: skip
add("the scale of the rotated width", modern, option(scale=1 / math.sqrt(6)))
add("the default scale for the model's own", modern, option(scale=None))
add("the default scale on top of the model's own", modern, option(scale=0.7 / math.sqrt(8)))
add("the cap comes after the bias", modern, port(
    cap=lambda self, scores: scores, bias=lambda self, scores, bias: 1.5 * np.tanh((scores + bias) / 1.5)))  # fmt: skip
add("the cap comes before the scale", modern, port(
    score=lambda self, q, k: np.einsum("bhid,bhjd->bhij", q, k),
    cap=lambda self, scores: 0.7 * 1.5 * np.tanh(scores / 1.5)))  # fmt: skip
add("the cap is not multiplied back", modern, port(cap=lambda self, scores: np.tanh(scores / 1.5)))
add("the cap is forgotten", modern, option(softcap=None))

# Biases

for how, factor in (("by the scale", 0.7), ("by 1 / sqrt(d)", 1 / math.sqrt(8))):
    add("the bias is scaled too", modern, **{how: argument(score_bias=BIAS * factor)})
    add("the bias is not scaled", modern, **{how: argument(score_bias=BIAS / factor)})
add("the bias is ignored", modern, argument(score_bias=None))
add("the bias has the other sign", modern, argument(score_bias=-BIAS))
add("the distance of the bias has the other sign", buckets, argument(score_bias=by_hand.of_distance(-1, 5, 7, 2)))
add("the bias is repeated over the batch, not tiled", modern, argument(score_bias=by_hand.repeated_bias(BIAS)))

# What hides keys


def hidden_below(self, seen, valid_lens):
    return seen & (np.arange(seen.shape[-1]) >= np.reshape(valid_lens, (-1, 1, 1, 1)))


def hidden_rows(self, seen, valid_lens):
    return seen & (np.arange(seen.shape[-2])[:, None] < np.reshape(valid_lens, (-1, 1, 1, 1)))


add("the mask is inverted", square, argument(mask=~MASK))
add("the mask is inverted", lengths, **{"that of the lengths": port(lengths=hidden_below)})
add("the mask is inverted", causal, **{"that of the causal order": port(seen=lambda self, i, j, causal: i < j)})
add("the mask is ignored", square, argument(mask=None))
add("the lengths are ignored", lengths, argument(valid_lens=None))
add("lengths are one too long", lengths, argument(valid_lens=LENGTHS + 1))
add("lengths are one too short", lengths, argument(valid_lens=np.array([3, 0, 5])))
add("lengths are tiled, not repeated", lengths, port(lengths=by_hand.tiled_lengths))
add("the padding mask is on the axis of queries", lengths, **{"that of the lengths": port(lengths=hidden_rows)})
add("the padding mask is on the axis of queries", square, **{
    "the mask is transposed": argument(mask=np.einsum("bhij->bhji", MASK))})  # fmt: skip
add("causal order is ignored", causal, argument(causal=False))
add("causal order is reversed", causal, port(seen=lambda self, i, j, causal: i <= j))
add("causal order is aligned to the lower right", causal, argument(offset=2))
add("causal order is off by one", causal, **{"one too many": argument(offset=2), "one too few": argument(offset=0)})
add("causal order begins again at every offset", causal, argument(offset=0))
add("everything is seen", square, argument(mask=None, valid_lens=None))

# Windows

for name, other in {
    "is symmetric": (3, 3), "only looks back": (3, 0), "is one wider to the left": (4, 1),
    "is one narrower to the left": (2, 1), "is one wider to the right": (3, 2), "is one narrower to the right": (3, 0),
    "is one wider on both sides": (4, 2), "is one narrower on both sides": (2, 0), "is ignored": None,
}.items():  # fmt: skip
    add(f"the window {name}", window, option(window=other))
add("the window is ignored on one side", window, **{
    "to the left": option(window=(None, 1)), "to the right": option(window=(3, None))})  # fmt: skip
add("the window begins again at every offset", window, argument(offset=0))
add("causal order goes by rows", Call(PLAIN, {"causal": True} | PLACES), argument(positions=None, key_positions=None))
add("the window goes by rows", in_window, argument(positions=None, key_positions=None))
for name, other in {"s are ignored": None, " is one longer": 4, " is one shorter": 2}.items():
    add(f"the chunk{name}", chunks, option(chunk=other))
add("the chunk is counted from the query", chunks, option(chunk=None, window=(2, 2)))
add("the chunks begin again at every offset", chunks, argument(offset=0))
add("the chunks go by rows", Call(chunks.options, PLACES), argument(positions=None, key_positions=None))
OWN_SEGMENTS, KEY_SEGMENTS = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 0, 1, 1, 2, -1])
packed = Call(PLAIN, {"segments": OWN_SEGMENTS, "key_segments": KEY_SEGMENTS})
NO_TEXTS = {"segments": None, "key_segments": None}
add("the segments are ignored", packed, argument(**NO_TEXTS))
add("other segments are seen", packed, **{
    "earlier ones, too": argument(**NO_TEXTS, mask=(KEY_SEGMENTS >= 0) & (OWN_SEGMENTS[:, None] >= KEY_SEGMENTS)),
    "later ones, too": argument(**NO_TEXTS, mask=OWN_SEGMENTS[:, None] <= KEY_SEGMENTS)})  # fmt: skip
add("the segments of keys are moved", packed, **{
    "one later": argument(key_segments=[-1, 0, 0, 0, 1, 1, 2]),
    "one earlier": argument(key_segments=[0, 0, 1, 1, 2, -1, 0])})  # fmt: skip
padding = {"segments": [0, -1, 1, 1, 2], "key_segments": KEY_SEGMENTS}
seen = {"segments": [0, 7, 1, 1, 2], "key_segments": np.where(KEY_SEGMENTS < 0, 7, KEY_SEGMENTS)}
add("padding is a segment like others", Call(PLAIN, padding), argument(**seen))
add("padding at positions below 0 is seen", hidden, argument(key_positions=None))

# The softmax


def over(axis, scores, seen):
    shares = np.where(seen, np.exp(scores), 0)
    return shares / np.maximum(shares.sum(axis, keepdims=True), 1e-300)


def uniform(of_scores, scores, seen):
    right = over(-1, scores, seen)
    instead = exponents(scores) if of_scores else np.full(scores.shape, 1 / scores.shape[-1])
    return np.where(seen.sum(-1, keepdims=True) == 0, instead, right)


def filled(fill, added, scores, seen):
    return exponents(np.where(seen, scores, scores + fill if added else fill))


add("the softmax is over another axis", lengths, **{
    "over queries": weighed(partial(over, 2)), "over heads": weighed(partial(over, 1))})  # fmt: skip
add("hidden keys are blanked after the softmax", lengths, weighed(lambda scores, seen: exponents(scores) * seen))
add("weights are averaged over the heads", lengths, weighed(
    lambda scores, seen: np.stack([over(-1, scores, seen).mean(1)] * scores.shape[1], 1)))  # fmt: skip
add("rows without keys are uniform", lengths, weighed(partial(uniform, False)),
    **{"by its scores": weighed(partial(uniform, True))})  # fmt: skip
add("weak mask fill", lengths, **{"-inf": weighed(partial(filled, by_hand.LOWEST, False))})
for fill in of_softmax.FILLS:
    add("weak mask fill", lengths, **{
        f"{fill:g}": weighed(partial(filled, fill, False)),
        f"{fill:g}, added": weighed(partial(filled, fill, True))})  # fmt: skip
for fill in of_softmax.SMALL:
    add("weak mask fill", lengths, **{f"{fill:g}": weighed(partial(filled, fill, False))})
add("booleans are added to the scores", lengths, weighed(lambda scores, seen: exponents(scores + seen)))
add("booleans are added to the scores", masks, **{"in lengths and mask alone": port(
    lengths=by_hand.lengths_kept, softmax=lambda self, scores, seen: over(-1, scores + self.kept, seen))})  # fmt: skip
add("hidden scores are capped", Call(MODERN, {"offset": 2, "score_bias": BIAS, "causal": True}), weighed(
    lambda scores, seen: exponents(np.where(seen, scores, BIAS - 1.5))))  # fmt: skip
add("1 is added to the sum of the softmax", lengths, weighed(partial(by_hand.beside_one, False)),
    **{"after the largest is subtracted": weighed(partial(by_hand.beside_one, True))})  # fmt: skip
add("the lowest number is added twice", masks, **{
    "for each mask": lowest_added(["lengths"], ["order"], ["window"]),
    "causal order and window are one mask": lowest_added(["lengths"], ["order", "window"])})  # fmt: skip
for size in of_softmax.BLOCKS:
    add("the accumulator of blocks is not rescaled", many, **{
        f"blocks of {size}": weighed(partial(by_hand.online, size, False)),
        f"blocks of {size}, nor the sum of weights": weighed(partial(by_hand.online, size, True))})  # fmt: skip

# The rotation

add("rotary components are paired the other way", modern,
    option(rotary=mha.Rotary(6, 50.0, interleaved=True)))  # fmt: skip
add("the rotation is off by one", modern, **{
    "queries one further": argument(offset=3), "queries one back, or keys one further": argument(offset=1),
    "both, from position 1 on": of_places(lambda role, places: places + 1)})  # fmt: skip
add("the rotation begins again at every offset", modern, **{"of queries": argument(offset=0)})
add("the rotation goes by rows", rotated, argument(positions=None, key_positions=None))
add("all samples turn as the first", rotated, argument(positions=lambda X: X[0]))
add("the rotation goes backwards", modern,
    frequencies(lambda rotary, d: [-X for X in by_hand.by_base(50.0, 3, 6)]))  # fmt: skip
add("the rotation is forgotten", modern, **{
    "of both": option(rotary=None), "of queries": of_places(lambda role, places: places if role == "k" else 0 * places),
    "of keys": of_places(lambda role, places: places if role == "q" else 0 * places)})  # fmt: skip
for base in of_rotations.BASES:
    add("another base", modern, **{f"{base:g}": option(rotary=mha.Rotary(6, base))})
add("keys turn twice", modern, of_places(lambda role, places: places if role == "q" else places + places), **{
    "those before the first query": of_places(
        lambda role, places: places if role == "q" else np.array([[0, 2, *range(2, 7)]])),
    "queries, too": frequencies(lambda rotary, d: [X + X for X in by_hand.by_base(50.0, 3, 6)])})  # fmt: skip
add("values turn, too", modern, port(share_values=lambda self, X: Port.share_values(
    self, self.turn("v", X, np.arange(X.shape[2])[None]))))  # fmt: skip
add("frequencies in half precision", modern, **{
    "bfloat16": frequencies(lambda rotary, d: by_hand.to_bfloat16(by_hand.by_base(50.0, 3, 6))),
    "float16": frequencies(lambda rotary, d: map(float, map(np.float16, by_hand.by_base(50.0, 3, 6))))})  # fmt: skip
add("another base", own, **{"the same, without the model's own scaling": option(rotary=mha.Rotary(6, 50.0))})
for factor in of_rotations.FACTORS:
    add("frequencies are scaled linearly", own, **{
        f"by {factor}": of_base(None, factor), f"by {factor}, base 500000": of_base(500000.0, factor)})  # fmt: skip
add("frequencies of the whole head", modern, frequencies(lambda rotary, d: by_hand.by_base(50.0, 3, 8)))
add("the whole head turns", modern, option(rotary=mha.Rotary(8, 50.0)))
add("the temperature is forgotten", tempered, option(temperature=None))
add("the temperature has the other shift", tempered, option(temperature=mha.Temperature(0.4, 2, 0)))
add("the temperature goes by rows", tempered,
    port(temper=lambda self, X, places: Port.temper(self, X, np.arange(places.shape[1])[None])))  # fmt: skip
add("the temperature is inverted", tempered, port(factor=lambda self, place: 1 / Port.factor(self, place)))
add("the temperature is that of keys", tempered, **{
    "not of queries": port(tempered=("k",)), "of queries, too": port(tempered=("q", "k"))})  # fmt: skip
add("the temperature grows at every position", tempered, option(temperature=mha.Temperature(0.4, 1)))
shares = 1.0, 0.3 / 50 ** (-1 / 3), 0.02 / 50 ** (-2 / 3)
swapped = [50 ** (-i / 3) * (max(shares) + min(shares) - share) for i, share in enumerate(shares)]
add("slow and fast pairs are mixed up", own, option(rotary=mha.Rotary(frequencies=tuple(swapped))))
add("the magnitude of the rotation is forgotten", magnified, option(rotary=mha.Rotary(4, 50.0)), **{
    f"of {words}": port(magnitude=lambda self, role, own=own: 1 if role == own else Port.magnitude(self, role))
    for own, words in (("q", "queries"), ("k", "keys"))})  # fmt: skip
add("the magnitude multiplies whole heads", magnified,
    option(rotary=mha.Rotary(4, 50.0), scale=lambda config: 1.3**2 / config.key_dim**0.5))  # fmt: skip
add("positions in half precision", far, of_places(lambda role, places: by_hand.to_bfloat16(places)))
add("the last components turn", modern, port(turned=by_hand.last_turned))
for size in of_rotations.TABLES:
    looked_up = of_places(lambda role, places, size=size: np.arange(size).take(places, mode="clip"))
    add("the table of angles is too short", far, **{f"{size} positions": looked_up})
for way, source in (("halves to neighbours", by_hand.neighbours_of_halves),
                    ("neighbours to halves", by_hand.halves_of_neighbours)):  # fmt: skip
    moved = partial(columns, source=partial(source, 3))
    add("rotary components of W_q and W_k are in another order", modern, **{
        way: moved(["W_q", "W_k"]), f"{way}, in the biases alone": moved(["W_q.bias", "W_k.bias"]),
        f"{way}, with the scales of the norms": moved(["W_q", "W_k", "q_norm", "k_norm"]),
        f"{way}, in the scales of the norms alone": moved(["q_norm", "k_norm"])})  # fmt: skip
    for name in ("W_q", "W_k"):
        add(f"rotary components of {name} are in another order", modern, **{
            way: moved([name]), f"{way}, in the bias alone": moved([f"{name}.bias"])})  # fmt: skip

# The norms


def normed(*roles):
    return port(norm=lambda self, role, X: Port.norm(self, role, X) if role in roles else X)


add("1 + w is forgotten", modern, scales(lambda name, X, weights: np.array([w - 1 for w in X])))
add("1 is added to the scale of a norm", modern, scales(lambda name, X, weights: np.array([w + 1 for w in X])))
add("the scale of a norm is forgotten", modern, scales(lambda name, X, weights: X / X))
add("RMS norm for layer norm", layered, option(qk_norm=mha.Norm("rms", 3e-3)))
add("layer norm for RMS norm", modern, option(qk_norm=mha.Norm("layer", 3e-3)))
add("the norm comes after the rotation", modern, port(prepare=by_hand.norm_last))
add("the norm comes before the rotation", normed_last, option(qk_norm=mha.Norm("rms", 3e-3)))
add("the norms are forgotten", modern, option(qk_norm=None))
add("keys have no norm", modern, normed("q"))
add("queries have no norm", modern, normed("k"))
add("the norm of queries for that of keys", modern, **{
    "for both": by_hand.of_other("q", "q"), "swapped": by_hand.of_other("k", "q"),
    "that of keys for both": by_hand.of_other("k", "k")})  # fmt: skip
for eps in of_norms.EPSILONS:
    add("another epsilon", modern, **{f"{eps:g}": option(qk_norm=mha.Norm("rms", eps))})
add("epsilon is outside the root", modern, port(root=lambda self, X, eps: X**0.5 + 3e-3))
add("the norm is over all heads", modern, port(prepare=by_hand.norm_of_width))
add("the norm is over each head", of_all, port(norm=by_hand.norm_of_each))
add("values have no norm", of_values, option(value_norm=None))
for eps in of_norms.EPSILONS:
    add("the norm of values has another epsilon", of_values, **{f"{eps:g}": option(value_norm=mha.Norm("rms", eps))})

# Roundings with exact forms

add("keys and values are rounded in a cache", modern, **{
    "bfloat16": by_hand.of_cache(by_hand.to_bfloat16),
    "int8, by token and head": by_hand.of_cache(partial(by_hand.to_int8, "bgtd->bgt")),
    "int8, by token": by_hand.of_cache(partial(by_hand.to_int8, "bgtd->bt")),
    "int8, by head": by_hand.of_cache(partial(by_hand.to_int8, "bgtd->bg"))})  # fmt: skip
add("cosines and sines in bfloat16", modern, port(turned=lambda self, X, cos, sin, interleaved: Port.turned(
    self, X, by_hand.to_bfloat16(cos), by_hand.to_bfloat16(sin), interleaved)))  # fmt: skip
