"""The cases of each level: inputs drawn from a seed, and the layer that computes the expected numbers.

Letters as in the lessons.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from mha.core.call import call_of
from mha.core.options.positions import Rotary
from mha.layer import MultiHeadAttention
from mha.parity.rule.problem import Problem, problem

Named = dict[str, np.ndarray]
PORTIONS = (3, 1, 2)
BASE = 10000.0


@dataclasses.dataclass(frozen=True)
class Case:
    """One case of a level.

    Attributes:
        words: a description for people.
        task: the name of the task that the submission's process runs.
        inputs, options: the arguments of the task.
        layer, weights, call: the arguments of `mha`'s layer, its weights, and the rest of its call.
        attends: the layer's queries, keys and values, if they are not those of `inputs`.
        optional: whether a submission may lack the argument.
    """

    words: str
    task: str
    inputs: Named
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    layer: dict[str, Any] = dataclasses.field(default_factory=dict)
    weights: Named = dataclasses.field(default_factory=dict)
    call: dict[str, Any] = dataclasses.field(default_factory=dict)
    attends: Named | None = None
    optional: bool = False

    def attention(self, biased: list[str]) -> MultiHeadAttention:
        """The layer that computes the expected numbers, with these biases."""
        attention = MultiHeadAttention(**self.layer, bias=bool(biased), backend="numpy", seed=0)
        kept = {name: X for name, X in self.weights.items() if name in attention.weights}
        nothing = {name: 0 * X for name, X in kept.items() if name.endswith(".bias") and name not in biased}
        attention.weights = kept | nothing
        return attention

    def problem(self, biased: list[str], empty_rows: bool) -> Problem:
        """The `Problem` of the case, which holds the expected numbers, with these biases."""
        named = self.attends or self.inputs
        given = call_of("grade", self.call.get("valid_lens"), {n: X for n, X in self.call.items() if n != "valid_lens"})
        queries, keys, values = (named[name] for name in ("queries", "keys", "values"))
        attention, cotangent = self.attention(biased), self.inputs.get("cotangent")
        return problem(attention, queries, keys, values, given._asdict(), cotangent, empty_rows=empty_rows)


class Draw:
    """Random numbers of a level, from a seed."""

    def __init__(self, seed: int, level: int) -> None:
        self.random = np.random.default_rng([seed, level])

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Draw from a normal distribution, in float32."""
        return (scale * self.random.normal(size=shape)).astype(np.float32)

    def lengths(self, shape: tuple[int, ...], most: int, least: int = 2) -> np.ndarray:
        """Draw lengths that differ between samples; no query sees only one key, or all of them."""
        drawn = [self.random.permutation(np.arange(least, most))[: shape[0]] for _ in range(int(np.prod(shape[1:])))]
        return np.array(drawn).T.reshape(shape).astype(np.int32)  # (B,) or (B, Q)

    def mask(self, *shape: int) -> np.ndarray:
        """Draw a mask with True in each row, and False in most rows."""
        mask = self.random.random(shape) < 0.6
        first = self.random.integers(shape[-1], size=shape[:-1])
        np.put_along_axis(mask, first[..., None], True, -1)
        np.put_along_axis(mask, ((first + 1) % shape[-1])[..., None], False, -1)
        return mask


def with_empty(lengths: np.ndarray) -> np.ndarray:
    """Let the last sample, or its last query, see no key."""
    lengths = lengths.copy()
    lengths.reshape(-1)[-1] = 0
    return lengths


def of_softmax(draw: Draw) -> list[Case]:
    """Level 1. The keys are unit vectors, so that the layer's weights are the softmax of the submission's scores."""
    B, Q, K = 3, 5, 7
    found = []
    for words, far, lengths in (
        ("lengths (B,)", 0, draw.lengths((B,), K)),
        ("no lengths", 0, None),
        ("lengths (B, Q)", 0, draw.lengths((B, Q), K)),
        ("large scores", 1000, draw.lengths((B,), K)),
        ("low scores", -200, draw.lengths((B,), K)),
        ("a length of 0", 0, with_empty(draw.lengths((B, Q), K))),
    ):
        X, unit = np.float32(far) + draw.normal(B, Q, K), np.broadcast_to(np.eye(K, dtype=np.float32), (B, K, K))
        given = {} if lengths is None else {"valid_lens": lengths}
        weights = {f"{name}.kernel": np.eye(K, dtype=np.float32) for name in ("W_q", "W_k", "W_v", "W_o")}
        layer = {"num_hiddens": K, "num_heads": 1, "scale": 1.0}
        attends = {"queries": X, "keys": unit, "values": unit}
        found.append(Case(words, "softmax", {"X": X} | given, {}, layer, weights, given, attends))
    return found


def of_pooling(draw: Draw) -> list[Case]:
    """Level 2."""
    found = []
    for words, (d, dv), far, how, dropout in (
        ("lengths (B,)", (7, 7), 0, "B", 0.0),
        ("no lengths", (7, 7), 0, "", 0.0),
        ("values of another width", (3, 11), 0, "B", 0.0),
        ("lengths (B, Q)", (7, 7), 0, "BQ", 0.0),
        ("large scores", (7, 7), 6.5, "B", 0.0),  # beyond 88, where exponentials overflow
        ("a length of 0", (7, 7), 0, "0", 0.0),
        ("dropout, but no training", (7, 7), 0, "B", 0.5),
    ):
        B, Q, K = 3, 5, 11
        shift = np.array([[[far]], [[far]], [[0.0]]], np.float32)  # NaN in all numbers would tell nothing
        inputs = {"queries": shift + draw.normal(B, Q, d), "keys": shift + draw.normal(B, K, d),
                  "values": draw.normal(B, K, dv)}  # fmt: skip
        given = lengths_of(draw, how, B, Q, K)
        weights = {f"{name}.kernel": np.eye(width, dtype=np.float32)
                   for name, width in (("W_q", d), ("W_k", d), ("W_v", dv), ("W_o", dv))}  # fmt: skip
        layer = {"num_hiddens": dv, "num_heads": 1, "query_size": d, "key_size": d, "value_size": dv,
                 "key_dim": d, "value_dim": dv}  # fmt: skip
        found.append(Case(words, "pooling", inputs | given, {"dropout": dropout}, layer, weights, given))
    return found


def lengths_of(draw: Draw, how: str, B: int, Q: int, K: int) -> Named:
    """Draw lengths for each sample, "B", or each query, "BQ"; with one of 0, "0"; or none, ""."""
    if not how:
        return {}
    lengths = draw.lengths((B,) if how == "B" else (B, Q), K)
    return {"valid_lens": with_empty(lengths) if how == "0" else lengths}


def of_heads(draw: Draw) -> list[Case]:
    """Level 3: splits alone; the axes of merged heads are those of the submission's own split."""
    return [
        Case(f"{H} heads", "split", {"X": draw.normal(B, T, H * d)},
             {"num_heads": H, "num_hiddens": H * d, "dropout": 0.0})
        for B, T, H, d in ((2, 5, 3, 7), (3, 7, 5, 2))
    ]  # fmt: skip


def of_layer(
    draw: Draw, words: str, B: int, Q: int, K: int, H: int, d: int, *, bias: bool = False, dropout: float = 0.0,
    scale: float = 1.0, call: dict[str, Any] | None = None, layer: dict[str, Any] | None = None, task: str = "layer",
    options: dict[str, Any] | None = None, optional: bool = False,
) -> Case:  # fmt: skip
    """Make a case of a layer with H heads of d features."""
    D, more, given = H * d, layer or {}, call or {}
    G = more.get("num_key_value_heads", H)
    inputs = {"queries": draw.normal(B, Q, D, scale=scale), "keys": draw.normal(B, K, D, scale=scale),
              "values": draw.normal(B, K, D)}  # fmt: skip
    weights = {}
    for name, width in (("W_q", D), ("W_k", G * d), ("W_v", G * d), ("W_o", D)):
        weights[f"{name}.kernel"] = draw.normal(D, width, scale=1.5 * D**-0.5)
        weights[f"{name}.bias"] = draw.normal(width, scale=0.5)
    arrays = {name: X for name, X in given.items() if isinstance(X, np.ndarray)}
    asked = {"num_hiddens": D, "num_heads": H, "dropout": dropout, "bias": bias} | (options or {})
    if "num_key_value_heads" in more:
        asked["num_key_value_heads"] = G
    if "rotary" in more:
        asked["rotary"] = BASE
    if given.get("causal"):
        asked["causal"] = True
    sizes = {"num_hiddens": D, "num_heads": H} | more
    return Case(words, task, inputs | weights | arrays, asked, sizes, weights, given, None, optional)


def of_one_head(draw: Draw) -> list[Case]:
    """Level 4."""
    return [
        of_layer(draw, "one head", 2, 5, 7, 1, 11),
        of_layer(draw, "other numbers", 3, 7, 5, 1, 13, scale=2.0),
        of_layer(draw, "with biases", 2, 5, 7, 1, 11, bias=True),
        of_layer(draw, "dropout, but no training", 2, 5, 7, 1, 11, dropout=0.5),
    ]


def of_many_heads(draw: Draw) -> list[Case]:
    """Level 5."""
    return [
        of_layer(draw, "3 heads", 2, 5, 7, 3, 5),
        of_layer(draw, "5 heads", 3, 7, 11, 5, 2, scale=2.0),
        of_layer(draw, "with biases", 2, 5, 7, 3, 5, bias=True),
    ]


def of_masks(draw: Draw) -> list[Case]:
    """Level 6."""
    B, Q, K, H, d = 3, 5, 7, 2, 7

    def case(words: str, call: dict[str, Any], keys: int = K, optional: bool = True) -> Case:
        return of_layer(draw, words, B, Q, keys, H, d, call=call, optional=optional)

    return [
        case("lengths (B,)", {"valid_lens": draw.lengths((B,), K)}, optional=False),
        case("lengths (B, Q)", {"valid_lens": draw.lengths((B, Q), K)}, optional=False),
        case("a length of 0", {"valid_lens": with_empty(draw.lengths((B, Q), K))}, optional=False),
        case("a mask (Q, K)", {"mask": draw.mask(Q, K)}),
        case("a mask (B, Q, K)", {"mask": draw.mask(B, Q, K)}),
        case("causal order", {"causal": True}, Q),
        case("lengths and causal order", {"valid_lens": draw.lengths((B,), Q), "causal": True}, Q),
        case("lengths and a mask", {"valid_lens": draw.lengths((B,), K, 3), "mask": np.tri(Q, K, 1, bool)}),
    ]


def of_gradients(draw: Draw) -> list[Case]:
    """Level 7."""
    found = []
    for words, how in (("no lengths", ""), ("lengths (B,)", "B")):
        B, Q, K, H, d = 2, 5, 7, 3, 5
        made = of_layer(draw, words, B, Q, K, H, d, call=lengths_of(draw, how, B, Q, K), task="gradients")
        found.append(dataclasses.replace(made, inputs=made.inputs | {"cotangent": draw.normal(B, Q, H * d)}))
    return found


def of_groups(draw: Draw) -> list[Case]:
    """Level 8."""
    rotary = Rotary(base=BASE)
    return [
        of_layer(draw, "grouped heads", 2, 5, 7, 6, 4, layer={"num_key_value_heads": 2}),
        of_layer(draw, "rotation", 2, 5, 7, 3, 6, layer={"rotary": rotary}),
        of_layer(draw, "both", 2, 11, 11, 6, 4, layer={"num_key_value_heads": 3, "rotary": rotary}),
    ]


def of_cache(draw: Draw) -> list[Case]:
    """Level 9."""
    T = sum(PORTIONS)
    more: dict[str, Any] = {"call": {"causal": True}, "task": "decode", "options": {"portions": list(PORTIONS)}}
    return [
        of_layer(draw, "in portions", 2, T, T, 3, 4, **more),
        of_layer(draw, "with a rotation", 2, T, T, 3, 4, layer={"rotary": Rotary(base=BASE)}, optional=True, **more),
    ]


MADE: dict[int, Callable[[Draw], list[Case]]] = {
    1: of_softmax, 2: of_pooling, 3: of_heads, 4: of_one_head, 5: of_many_heads, 6: of_masks, 7: of_gradients,
    8: of_groups, 9: of_cache,
}  # fmt: skip


def cases(level: int, seed: int) -> list[Case]:
    """Draw the cases of a level."""
    return MADE[level](Draw(seed, level))
