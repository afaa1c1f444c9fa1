"""A known mistake of decoding in a backend's own lesson: a call with a cache, with functions of the chapters replaced.

A function that takes the place of another is given the framework, the right function and what that one is given. It
works with NumPy where frameworks differ, so that one serves all of them. None of it comes from `mha.parity`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import seams

import mha
from mha.core import dispatch

B, H, D = 3, 6, 24
TURNED = {"num_key_value_heads": 2, "rotary": mha.Rotary(4), "bias": True}
RING = {"window": (3, None), "rotary": mha.Rotary(4)}
LEFT = [[0, 1, 2, 3], [-1, -1, 0, 1], [-1, 0, 1, 2]]  # positions of a prompt that is padded on the left
SLOPES = 2.0 ** -np.arange(1, H + 1)[:, None, None]  # (H, 1, 1)
ROWS = {
    "of the sample before": [2, 0, 1], "of the sample after": [1, 2, 0], "of the first sample": [0, 0, 0],
    "the first two swapped": [1, 0, 2], "the last two swapped": [0, 2, 1],
}  # fmt: skip


def tokens(count, seed):
    """Random tokens (B, count, D), the same in every run."""
    return np.random.default_rng(seed).normal(size=(B, count, D)).astype("float32")


@dataclasses.dataclass(frozen=True)
class Decode:
    """A call with a cache: options of the layer, lengths of the prompt, slots, new tokens, and what else is given."""

    options: dict[str, Any]
    lengths: list[int]
    size: int | None
    count: int = 1
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def made(self):
        """The layer and its cache after the prompt, on NumPy; the new tokens, (B, Q, D)."""
        layer = mha.MultiHeadAttention(D, H, **self.options, seed=3, backend="numpy")
        cache, X = layer.cache(B, self.size), tokens(max(self.lengths), 1)
        if max(self.lengths):
            _, cache = layer(X, X, X, self.lengths, causal=True, cache=cache)
        return layer, cache, tokens(self.count, 2)

    def compared(self, theirs):
        """The report on arrays of this call."""
        layer, cache, x = self.made()
        return mha.parity.compare(layer, theirs, x, x, x, causal=True, cache=cache, **self.more)


@dataclasses.dataclass(frozen=True)
class Planted:
    """A mistake, named as in a diagnosis, in a call: functions by the name that they replace, or other arguments."""

    name: str
    how: str
    decode: Decode
    functions: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def reports(self, backend):
        """The mistake on a backend, as it is seen by all arrays and by the output alone."""
        theirs = decoded(backend, self.decode, self.functions, self.given)
        return self.decode.compared(theirs), self.decode.compared(theirs["output"])


def decoded(backend, decode, functions=None, given=None):
    """What a call by a backend's lesson leaves, as NumPy arrays, with functions replaced and arguments changed."""
    layer, cache, x = decode.made()
    layer = mha.layer.restore(layer.config, layer.weights, backend, layer.seed, readable=True)
    own, framework = cache.to(backend), Framework(backend, x)
    functions = {"MultiHeadAttention.recall": unguarded} | dict(functions or {})
    with seams.replaced(backend, {name: framework.instead(wrong) for name, wrong in functions.items()}):
        output, left = layer(x, x, x, causal=True, cache=own, **decode.more | dict(given or {}))
    kept = {f"cache.{name}": getattr(left, name) for name in ("keys", "values", "positions")}
    return {name: mha.to_numpy(X) for name, X in ({"output": output} | kept).items()}


def unlike(backend, *decodes):
    """The first array that is off where what is planted changes nothing, in calls that turn; None = none."""
    for decode in decodes or (ragged, portion, prompt):
        if (row := decode.compared(decoded(backend, decode, NOTHING)).first) is not None:
            return row.name
    return None


class Framework:
    """The framework of a backend, for functions that work with NumPy; x: the new tokens, (B, Q, D)."""

    def __init__(self, backend, x):
        self.lesson, self.module, self.x = dispatch.lesson(backend), dispatch.load(backend), x

    def instead(self, function):
        """What puts a function in the place of the right one, a method or not."""

        def change(right):
            def wrong(*given):
                return function(self, right, *given)

            return staticmethod(wrong) if isinstance(right, staticmethod) else wrong

        return change

    def numpy(self, X):
        """An array of the framework as NumPy's."""
        return np.array(self.module.to_numpy(X))

    def own(self, X):
        """An array of NumPy as the framework's."""
        return self.module.tensor(np.ascontiguousarray(X))

    def flat(self, X):
        """Heads in slots, (B, G, S, d), as a layer computes with heads: (B*G, S, d)."""
        X = self.numpy(X)
        return self.own(X.reshape(-1, *X.shape[2:]))  # (B*G, S, d)

    def turned(self, X, places, cache):
        """Heads (B*G, T, d) that turn by places, NumPy's (B, T)."""
        return self.lesson.rotate(X, self.own(places), cache.config.rotary, cache.config.num_key_value_heads)


def unguarded(framework, right, output, weights, call, cache):
    """`recall` without NaN for samples that have lost tokens: decoders with these mistakes do not know it."""
    return right(output, weights, call, cache.after(*cache.arrays()[:4], call.cache.lost))


# Where new tokens are: in place of the layer's method `zero_unused`, which says it


def moved(by):
    """Positions of new tokens further by so many; by: a function of the newest in the slots, (B, 1)."""

    def zero_unused(framework, right, layer, *given):
        *inputs, call = right(layer, *given)
        newest = framework.numpy(call.cache.positions).max(1, keepdims=True)  # (B, 1)
        positions = framework.own(framework.numpy(call.positions) + by(newest))  # (B, Q)
        return *inputs, call._replace(positions=positions, key_positions=positions)

    return {"MultiHeadAttention.zero_unused": zero_unused}


def padding_kept(framework, right, layer, queries, keys, values, call):
    """Padding counts as any token."""
    return right(layer, queries, keys, values, call._replace(valid_lens=None, positions=None))


def padding_kept_beside(framework, right, layer, *given):
    """Padding is kept at the number of its row, and tokens where they are."""
    *_, placed = right(layer, *given)
    *inputs, call = padding_kept(framework, right, layer, *given)
    known, rows = framework.numpy(placed.positions), framework.numpy(call.positions)  # (B, Q)
    positions = framework.own(np.where(known < 0, rows, known))  # (B, Q)
    return *inputs, call._replace(positions=positions, key_positions=positions)


# How they turn


def by_slots(*names):
    """Turn by the numbers of slots what has positions of these names: tokens of a ring that came one after another."""

    def transform_heads(framework, right, layer, q, k, call):
        slots = framework.own(framework.numpy(call.key_positions) % call.cache.sizes[1])  # (B, Q)
        return right(layer, q, k, call._replace(**dict.fromkeys(names, slots)))

    return {"MultiHeadAttention.transform_heads": transform_heads}


def stretched(factor, whole):
    """Turn by frequencies of a sequence longer by a factor; whole: all of them, or those of a larger base."""

    def rotate(framework, right, X, places, rotary, num_heads):
        if whole:
            other = mha.Rotary(frequencies=tuple(angle / factor for angle in rotary.angles()))
        else:
            other = mha.Rotary(rotary.dim, base=rotary.base * factor ** (rotary.dim / (rotary.dim - 2)))
        return right(X, places, other, num_heads)

    return {"rotate": rotate}


# What the slots hold, and what is seen of it: in place of the layer's `remember`


def remembers(*functions):
    """Functions in place of `remember`, of which each takes the next one, and the last one the lesson's, for right."""

    def remember(framework, right, *given):
        for function in reversed(functions):
            right = partial(function, framework, right)
        return right(*given)

    return {"MultiHeadAttention.remember": remember}


def stored(change, seen):
    """Keep other heads of new tokens, which change gives; seen: and let the queries see these."""

    def remember(framework, right, k, v, call):
        *now, left = right(*change(framework, k, v, call), call)
        return *(now if seen else right(k, v, call)[:3]), left

    return remember


def unturned(framework, k, v, call):
    """Keys turned back, and values."""
    return framework.turned(k, -framework.numpy(call.key_positions), call.cache), v


def unprojected(role):
    """Keys, or values, as they come in."""

    def change(framework, k, v, call):
        raw = framework.own(framework.x.reshape(B, -1, H, D // H).swapaxes(1, 2).reshape(B * H, -1, D // H))
        return (raw, v) if role == "keys" else (k, raw)  # (B*H, Q, d)

    return change


def found(change, stays=True):
    """Find another cache in the slots; stays: and keep it."""

    def remember(framework, right, k, v, call):
        *now, left = right(k, v, call._replace(cache=change(framework, call.cache)))
        return *now, left if stays else right(k, v, call)[3]

    return remember


def turned_again(by):
    """Keys in the slots that have turned once more; by: a function of positions (B, S)."""

    def change(framework, cache):
        again = framework.turned(framework.flat(cache.keys), by(framework.numpy(cache.positions)), cache)
        keys = framework.own(framework.numpy(again).reshape(framework.numpy(cache.keys).shape))  # (B, G, S, d)
        return cache.after(keys, *cache.arrays()[1:])

    return change


def stale(count):
    """Positions of so many tokens in the slots behind the next one."""

    def change(framework, cache):
        places = framework.numpy(cache.positions)  # (B, S)
        slot = np.arange(places.shape[1], dtype=places.dtype)  # which is the position here
        left = np.where(slot <= places.max(1, keepdims=True) + 1 + count, slot, -1)  # (B, S)
        return cache.after(cache.keys, cache.values, framework.own(left), *cache.arrays()[3:])

    return change


def of_others(names, rows):
    """Slots of other samples, of the arrays of these names."""

    def change(framework, cache):
        other = cache.reorder(rows)
        arrays = [getattr(other if name in names else cache, name) for name in ("keys", "values", "positions")]
        return cache.after(*arrays, *cache.arrays()[3:])

    return change


def further(by):
    """The number of tokens so far, by which the slot of the next one goes, with so many more; by: a function of it."""

    def change(framework, cache):
        number = framework.numpy(cache.lengths)  # (B,)
        return cache.after(*cache.arrays()[:3], framework.own(number + by(number)), cache.lost)

    return change


def written_first(see=lambda framework, call: call):
    """Attend to the slots as they are after the call; see: what else to change of the call."""

    def remember(framework, right, k, v, call):
        *_, after, left = right(k, v, call)
        after = see(framework, after._replace(key_positions=left.positions))
        return framework.flat(left.keys), framework.flat(left.values), after, left

    return remember


def seen_by_slots(framework, call):
    """The call, where a query sees the slots up to the one that goes with its position, and no other."""
    S = framework.numpy(call.key_positions).shape[1]
    queries, slots = framework.numpy(call.positions) % S, np.arange(S, dtype="int32")[None]  # (B, Q), (1, S)
    return call._replace(positions=framework.own(queries), key_positions=framework.own(slots)).with_plan(window=None)


def seen_empty(framework, call):
    """The call, where an empty slot is a token at position 0."""
    return call._replace(key_positions=framework.own(np.maximum(framework.numpy(call.key_positions), 0)))


def upper_left(framework, right, queries, keys, call):
    """`visible_keys`, where the first query is at position 0."""
    Q = framework.numpy(queries).shape[1]
    return right(queries, keys, call._replace(positions=framework.own(np.arange(Q, dtype="int32")[None])))


def windowed(by):
    """A window that goes further back by so many."""

    def visible_keys(framework, right, queries, keys, call):
        left, ahead = call.plan.window
        return right(queries, keys, call.with_plan(window=(left + by, ahead)))

    return {"visible_keys": visible_keys}


def tiled(framework, right, X, times):
    """`repeat_groups` in another order: query head h reads head h % G."""
    X = framework.numpy(X)
    heads = np.tile(X.reshape(B, -1, *X.shape[1:]), (1, times, 1, 1))  # (B, H, T, d)
    return framework.own(heads.reshape(-1, *X.shape[1:]))  # (B*H, T, d)


def bias_of(distance):
    """ALiBi's bias of scores, (1, H, 1, S), by distances in a ring, (S,)."""
    return {"score_bias": (-SLOPES * np.array(distance))[None].astype("float32")}  # (1, H, 1, S)


# The calls, and the mistakes

RAGGED, UNEVEN, EVEN = ([4, 2, 3], 11), ([3, 4, 2], 11), ([4, 4, 4], 11)  # lengths of prompts, slots
WRAPPED = [6, 6, 6], None  # positions 4, 5, 2, 3 in the slots; the next token goes where 2 is
AGAIN = {"by their positions": lambda places: places, "by one": np.ones_like, "back by one": lambda X: -np.ones_like(X)}
BESIDE = "tokens are written to a slot beside theirs"
BEAMS = {
    "beams are reordered for keys alone": ["values"],
    "beams are reordered for values alone": ["keys"],
    "the cache is that of another sample": ["keys", "values", "positions"],
}
ragged, uneven, even = (Decode(TURNED, *prompt) for prompt in (RAGGED, UNEVEN, EVEN))
plain, ring, portion = Decode({}, *RAGGED), Decode(RING, *WRAPPED), Decode(RING, *WRAPPED, 3)
wrapped, spacious = Decode(RING, [6, 5, 7], None), Decode(RING, [6, 6, 6], 11)
prompt = Decode(TURNED, [0, 0, 0], 11, 4, {"positions": LEFT})
biased = Decode({"window": (3, None)}, *WRAPPED, 1, bias_of([2, 1, 0, 3]))
NOTHING = (
    moved(lambda newest: 0)
    | by_slots()
    | stretched(1, True)
    | remembers(
        found(further(lambda number: 0)),
        found(turned_again(np.zeros_like)),
        found(of_others(["keys"], [0, 1, 2])),
        stored(lambda framework, k, v, call: (k, v), False),
    )
)
PLANTED = [
    Planted("new tokens are one position off", "too far", ring, moved(lambda newest: 1)),
    Planted("new tokens are one position off", "too near", ring, moved(lambda newest: -1)),
    Planted("positions are counted from the padded length", "", ragged, moved(lambda newest: newest.max() - newest)),
    Planted("positions are counted from the padded length", "and their slots", ragged,
            moved(lambda X: X.max() - X) | remembers(found(further(lambda X: X.max() - X)))),
    Planted("all samples share a position", "that of the first", uneven, moved(lambda newest: newest[0] - newest)),
    Planted("all samples share a position", "that of the shortest", uneven, moved(lambda X: X.min() - X)),
    Planted("tokens turn by their slots", "keys", ring, by_slots("key_positions")),
    Planted("tokens turn by their slots", "queries, too", ring, by_slots("positions", "key_positions")),
    *(Planted("keys in the slots turn again", f"{how}{', and stay so' * stays}", ring,
              remembers(found(turned_again(by), stays)))
      for how, by in AGAIN.items() for stays in (False, True)),
    *(Planted("the rotation is stretched in the middle", f"by {factor}{', by a larger base' * (not whole)}",
              ragged, stretched(factor, whole))
      for factor in (2, 4, 8) for whole in (True, False)),
    Planted("keys are kept before they turn", "", ragged, remembers(stored(unturned, False))),
    Planted("keys are kept before they turn", "and are seen so", ragged, remembers(stored(unturned, True))),
    *(Planted("keys or values are kept before their projection", f"{role}{', and seen so' * seen}", plain,
              remembers(stored(unprojected(role), seen)))
      for role in ("values", "keys") for seen in (False, True)),
    Planted(BESIDE, "one too far", ragged, remembers(found(further(lambda X: 1)))),
    Planted(BESIDE, "over the newest", ragged, remembers(found(further(lambda X: -1)), written_first())),
    Planted(BESIDE, "one too far, and not seen there", even,
            remembers(found(further(lambda X: 1)), written_first(seen_by_slots))),
    Planted("a portion overwrites what its first queries see", "", portion, remembers(written_first())),
    Planted("order goes by slots", "", wrapped, remembers(written_first(seen_by_slots))),
    Planted("causal order is aligned to the upper left", "", even, {"visible_keys": upper_left}),
    Planted("empty slots are seen", "", ragged, remembers(written_first(seen_empty))),
    Planted("padding is taken for tokens", "and counts in positions", prompt,
            {"MultiHeadAttention.zero_unused": padding_kept}),
    Planted("padding is taken for tokens", "positions are right", prompt,
            {"MultiHeadAttention.zero_unused": padding_kept_beside}),
    *(Planted("a crop leaves positions", f"of {count} behind the newest", even,
              remembers(found(stale(count)), written_first()))
      for count in (1, 2, 3, 4)),
    *(Planted(name, how, even, remembers(found(of_others(names, rows))))
      for name, names in BEAMS.items() for how, rows in ROWS.items()),
    Planted("the bias goes by slots", "", biased, given=bias_of([2, 1, 0, -1])),
    Planted("the window is one wider to the left", "", spacious, windowed(1)),
    Planted("the window is one narrower to the left", "", spacious, windowed(-1)),
    Planted("heads of keys are tiled, not repeated", "", ragged, {"repeat_groups": tiled}),
]  # fmt: skip
