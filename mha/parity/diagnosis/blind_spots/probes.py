"""Other inputs for a layer and a call, the probes: a mistake that some inputs do not show, others do.

A call is rewritten in fewer numbers, with the same steps and output, so that many mistakes are quickly tried in it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from mha.core import dispatch
from mha.core.call import ALL, ROWS, axes_of
from mha.core.options.config import Config, numpy_dtype
from mha.core.options.names import FloatName
from mha.layer import MultiHeadAttention, restore
from mha.parity.rule.problem import Problem, problem
from mha.parity.rule.rules import UNIT, in_dtype

Array = np.ndarray
Inputs = Literal["queries", "keys", "values"]
TURNED = 67  # tokens that show a rotation, slow frequencies too
FAR = 269  # tokens with positions that half precision rounds
MANY = 523  # tokens of more than one block of keys, and beyond the end of a short table of angles
TWICE = 1031  # keys of more than two blocks
TABLE = 8200  # positions beyond the end of a long one
SMALL = 5  # the largest bound of a window in a probe, which stands for larger ones
MEMORY = 1e9  # bytes that the comparison of a long sequence may take, about
QUIET = 1e-3  # of every third token, so that an epsilon matters
SEEN = 0.6  # the share of a mask that is True
FEATURES = 64  # features of an input that are always left


def widths(config: Config) -> tuple[int, int, int]:
    """Return the widths of queries, keys and values."""
    return config.query_size, config.key_size, config.value_size


def in_samples(most: int, asked: Problem) -> Problem:
    """Return the call with one sample, or two: those in which most and least is seen; nothing of it is computed yet."""
    if len(asked.queries) <= most:
        return replace(asked)
    counted = np.flatnonzero(asked.rows_that_count.any(1))  # where no row counts, nothing would show
    counted = counted if counted.size else np.arange(len(asked.queries))
    seen = asked.pairs_that_count.sum((1, 2, 3))[counted]
    last, least = int(counted[::-1][seen[::-1].argmax()]), int(counted[seen.argmin()])
    first, last = (last, last) if most == 1 else sorted((least, last))
    chosen = slice(first, last + 1, max(1, last - first))
    rows, cotangent = (None if X is None else X[chosen] for X in (asked.rows, asked.cotangent))
    queries, keys, values = asked.queries[chosen], asked.keys[chosen], asked.values[chosen]
    inputs: dict[str, Any] = {"queries": queries, "keys": keys, "values": values}
    return replace(asked, **inputs, call=asked.call.part(samples=chosen), rows=rows, cotangent=cotangent)


def shrink(asked: Problem) -> Problem:
    """Return the call in coordinates of its own tokens, of a layer with fewer features of its inputs.

    A token is a sum of as many directions as there are tokens; there are some at random besides, for tokens that are
    drawn. The layer projects these directions instead. So its steps and its output are the same, up to rounding. A call
    with tokens that are not finite, or with nearly as many as there are features, is returned unchanged.
    """
    config, weights = asked.config, asked.layer.weights
    inputs: dict[str, Any] = {"queries": asked.queries, "keys": asked.keys, "values": asked.values}
    sizes = dict(zip(inputs, widths(config), strict=True))
    basis = {width: directions([X for name, X in inputs.items() if sizes[name] == width], width)
             for width in {*sizes.values()}}  # fmt: skip
    if all(basis[width] is None for width in basis):
        return asked
    kind = numpy_dtype(config.dtype)
    with np.errstate(over="ignore"):
        for name, X in inputs.items():
            if (own := basis[sizes[name]]) is not None:
                inputs[name] = (X.astype(np.float64) @ own / (own * own).sum(0)).astype(kind)  # (B, T, n)
    if not all(np.isfinite(X.astype(np.float32)).all() for X in inputs.values()):  # a coordinate may be larger
        return asked
    for name, of in KERNELS.items():
        if name in weights and (own := basis[sizes[of]]) is not None:
            weights[name] = (own.T @ weights[name].astype(np.float64)).astype(kind)  # (n, out)
    fewer = {f"{name}_size": inputs[of].shape[2] for name, of in SIZES.items()}
    layer = restore(replace(config, **fewer), weights, "numpy", asked.layer.seed)
    return replace(asked, layer=layer, **inputs)


KERNELS = {"W_q.kernel": "queries", "W_g.kernel": "queries", "W_k.kernel": "keys", "W_v.kernel": "values"}
SIZES = {"query": "queries", "key": "keys", "value": "values"}


def directions(arrays: list[Array], width: int) -> Array | None:
    """Return orthogonal directions of a width, (width, n), of which all tokens of arrays are sums; None = hardly fewer.

    Each is so long that a number of a token is as large as before.
    """
    tokens = np.unique(np.concatenate([X.reshape(-1, width) for X in arrays]), axis=0).astype(np.float64)
    n = max(FEATURES, len(tokens))
    if 2 * n > width or not np.isfinite(tokens).all():
        return None
    others = np.random.default_rng(3).normal(size=(n - len(tokens), width))
    return np.linalg.qr(np.concatenate([tokens, others]).T)[0] * (width / n) ** 0.5  # (width, n)


def draw_inputs(config: Config, B: int, Q: int, K: int, one_input: bool) -> list[Array]:
    """Draw queries, keys and values of standard deviation 1, but for every third token."""
    random = np.random.default_rng(0)
    made = [random.normal(size=(B, T, width)) for T, width in zip((Q, K, K), widths(config), strict=True)]
    for X in made:
        X[:, 1::3] *= QUIET
    return [made[0]] * 3 if one_input else made


def draw_arguments(asked: Problem, Q: int, K: int) -> dict[str, Array]:
    """Draw the arguments that a call has, for so many queries and keys; an offset stays unchanged."""
    random, made, sizes = np.random.default_rng(2), dict[str, Array](), asked.sizes
    given = asked.call.arrays()
    if Q != K:  # then the keys are not of the same texts as the queries
        given |= {name: X for name, X in asked.call.segment_ids().items() if X is not None}
    old = {"B": sizes.B, "H": sizes.config.num_heads, "Q": sizes.Q, "K": sizes.K}
    new = old | {"Q": Q, "K": K}
    for name, X in given.items():
        row, axes = ROWS[name], axes_of(name, X)
        if row.holds == "integers" and row.usual is None:
            continue
        shape = [new[letter] if n == old[letter] else n for letter, n in zip(axes, X.shape, strict=True)]
        if row.usual is not None:
            first, below = row.usual(Q if row.axes[0] == "Q" else K)
            # An array that is one for all samples is drawn for each.
            made[name] = random.integers(first, max(below, first + 1), shape if "B" in axes else (sizes.B, *shape))
        elif row.holds == "booleans":
            made[name] = random.random(shape) < SEEN
        else:
            number = random.normal(size=shape)
            if row.hides and not np.isfinite(X).all():  # it hides other keys then
                number[random.random(shape) > SEEN] = row.hidden
            made[name] = number.astype(X.dtype)
    return made


def inputs(attention: MultiHeadAttention, one_input: bool = False) -> dict[Inputs, Any]:
    """Make queries, keys and values that show each mistake that shows in a plain call of a layer.

    They are longer than its window, than blocks of keys and than a table of 512 angles, as far as a gigabyte reaches.
    Some rows are so small that an epsilon matters. Weights are the layer's: norms whose scales are all 1 and biases of
    0 hide mistakes.

    Args:
        attention: the layer.
        one_input: True = self-attention, the three are one array: call `port(X["queries"])`.

    Returns:
        {"queries": (B, Q, query_size), "keys": (B, K, key_size), "values": (B, K, value_size)} in arrays of the layer's
        backend and its dtype, the same in every run; for `parity.compare(attention, output, **X)`.

    Raises TypeError if attention is no layer, ValueError if one_input is True and the widths differ.
    """
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    config = attention.config
    if one_input and len({*widths(config)}) > 1:
        raise ValueError(f"one_input is True, expected False: queries, keys and values have widths {widths(config)}")
    T = max(long_enough(config, FAR), *(T for T in (7, FAR, MANY) if memory(config, T) <= MEMORY))
    B = 2 if memory(config, 2**0.5 * T) <= MEMORY else 1
    made = draw_inputs(config, B, T, T if one_input else T + 4, one_input)[: 1 if one_input else 3]
    module = dispatch.load(attention.backend)
    with module.context(config.dtype):
        arrays = [module.tensor(X.astype(numpy_dtype(config.dtype))) for X in made]
    queries, keys, values = arrays * 3 if one_input else arrays
    return {"queries": queries, "keys": keys, "values": values}


def long_enough(config: Config, turned: int) -> int:
    """Return the number of tokens that show a layer's window, its chunks, and its rotation (`turned` of them); or 0.

    Numbers that take more memory than there may be are left out.
    """
    wanted = [bound + 3 for bound in bounds(config)] + [turned] * bool(config.rotary)
    return max((T for T in wanted if memory(config, T) <= MEMORY), default=0)


def bounds(config: Config) -> list[int]:
    """Return how far a query sees at most: the sides of the window, and the chunk."""
    return [bound for bound in (*(config.window or ()), config.chunk) if bound is not None]


def memory(config: Config, T: float) -> float:
    """Estimate the bytes of a comparison of T tokens: four steps of pairs, in float64 and in half its size."""
    each = config.key_dim if config.pooling == "additive" else 1  # additive scores have key_dim numbers for a pair
    return 4 * (8 + 4) * config.num_heads * each * T**2


@dataclasses.dataclass(frozen=True)
class Probe:
    """A change of a call, to show mistakes.

    words: describe the changed call; made: the function that makes it, which returns None if there is no such change;
    about: only mistakes with this in their names are tried with it.
    """

    words: str
    made: Callable[[Problem], Problem | None]
    about: str = ""


def change_call(
    asked: Problem,
    changed: Mapping[str, Any] | None = None,
    *,
    layer: MultiHeadAttention | None = None,
    inputs: Sequence[Array] = (),
    empty_rows: bool = False,
) -> Problem:
    """Return the same call with other arguments by name, another layer, or other inputs; the same rows count, or all.

    empty_rows: True = rows of queries that see no key count, too.
    """
    call = {name: X for name, X in asked.call.arguments().items() if name in ROWS} | dict(changed or {})
    queries, keys, values = inputs or (asked.queries, asked.keys, asked.values)
    rows = None if asked.rows is None or asked.rows.shape != queries.shape[:2] else asked.rows
    empty_rows = empty_rows or asked.empty_rows
    layer = layer or asked.layer
    made = problem(layer, queries, keys, values, call, None, rows, empty_rows, asked.angles)
    return replace(made, layer=layer).with_layers_of(asked)


def in_wider(dtype: FloatName, asked: Problem) -> Problem | None:
    """Return the same call in a dtype that is more precise than its own; None if the dtype is not."""
    if UNIT[dtype] >= UNIT[asked.config.dtype]:
        return None
    floats = {name: X.astype(numpy_dtype(dtype)) for name, X in asked.call.differentiable().items()}
    made = [X.astype(numpy_dtype(dtype)) for X in (asked.queries, asked.keys, asked.values)]
    return change_call(asked, floats, layer=in_dtype(asked.layer, dtype), inputs=made)


def other_weights(ending: str, asked: Problem) -> Problem | None:
    """Return the same call of a layer with other weights of this kind, at random."""
    random, weights = np.random.default_rng(1), asked.layer.weights
    chosen = {name: random.normal(1, 0.5, X.shape) for name, X in weights.items() if name.endswith(ending)}
    if not chosen:
        return None
    changed = {name: X.astype(weights[name].dtype) for name, X in chosen.items()}
    return change_call(asked, layer=restore(asked.config, weights | changed, "numpy", asked.layer.seed))


def other_numbers(size: float, different: bool, asked: Problem) -> Problem:
    """Return the call with other inputs; size: their standard deviation; different: three inputs, not one for all."""
    B, Q, K = asked.sizes.B, asked.sizes.Q, asked.sizes.K
    made = draw_inputs(asked.config, B, Q, K, asked.one_input and not different)
    return change_call(asked, inputs=[(size * X).astype(asked.queries.dtype) for X in made])


def other_arguments(of_tokens: bool, asked: Problem) -> Problem | None:
    """Return the call with other arrays, if it has positions or segments among them, or else if it has none."""
    if of_tokens != any(X is not None for X in (asked.call.position_ids() | asked.call.segment_ids()).values()):
        return None
    changed = draw_arguments(asked, asked.sizes.Q, asked.sizes.K)
    return change_call(asked, changed) if changed else None


def hide_all(asked: Problem) -> Problem | None:
    """Return the same call with a query that sees no key, if one of its arrays can hide all."""
    given = asked.call.arrays()
    name = next((name for name, X in given.items() if ROWS[name].hidden is not None and X.size), None)
    if name is None:
        return None
    # The first query, or else all of the last sample; a key, too, that looks as that query.
    places = {name: {"Q": 0} if "Q" in axes_of(name, given[name]) else {"B": -1}, f"key_{name}": {"K": 0}}
    changed = {}
    for one in places.keys() & given.keys():
        changed[one] = np.array(given[one])
        changed[one][tuple(places[one].get(letter, ALL) for letter in axes_of(one, given[one]))] = ROWS[one].hidden
    return change_call(asked, changed, empty_rows=True)


def nan_in_padding(asked: Problem) -> Problem | None:
    """Return the same call with NaN in the keys and values that no query sees, if there are any."""
    unseen = ~np.asarray(asked.visible.any((1, 2)))[..., None]  # (B, K, 1)
    if not unseen.any():
        return None
    keys, values = (np.where(unseen, np.full_like(X, np.nan), X) for X in (asked.keys, asked.values))
    return change_call(asked, inputs=(asked.queries, keys, values))


def further(apart: int, asked: Problem) -> Problem | None:
    """Return the call with queries that begin later, by more in each sample, if an offset says where they begin."""
    if not goes_by_offset(asked):
        return None
    return change_call(asked, {"offset": asked.call.arguments()["offset"] + 3 + apart * (1 + np.arange(asked.sizes.B))})


def beyond_blocks(later: bool, asked: Problem) -> Problem | None:
    """Return a call of few queries and keys of more than two blocks; later: queries begin where the third does."""
    made = longer(7, TWICE - 7, asked)
    if not later:
        return made
    return change_call(made, {"offset": TWICE - 11}) if goes_by_offset(asked) else None


def beyond_table(asked: Problem) -> Problem | None:
    """Return the call with queries that begin as late as a long table of angles ends, or as their window reaches."""
    if not asked.config.rotary or not goes_by_offset(asked):
        return None
    left = (asked.config.window or (None, None))[0]
    return change_call(asked, {"offset": TABLE if left is None else min(left, TABLE)})


def later(option: str, first: int, asked: Problem) -> Problem | None:
    """Return the call with all positions so many later, so that no distance changes, if an option is on."""
    if getattr(asked.config, option) is None or (option == "rotary" and goes_by_offset(asked)):  # see `beyond_table`
        return None
    offset = np.reshape(asked.call.arguments()["offset"], (-1, 1))
    made = {"positions": offset + np.arange(asked.sizes.Q), "key_positions": np.arange(asked.sizes.K)[None]}
    for name, X in made.items():
        given = asked.call.position_ids()[name]
        moved = X + first if given is None else np.where(given < 0, given, given + first)
        made[name] = np.broadcast_to(moved, (asked.sizes.B, moved.shape[-1]))
    return change_call(asked, made | {"offset": 0})


def goes_by_offset(asked: Problem) -> bool:
    """Return whether anything in a call depends on its offset."""
    by_positions = asked.call.causal or bounds(asked.config) or asked.config.rotary or asked.config.temperature
    return bool(by_positions) and asked.call.positions is None


def longer(T: int, more: int, asked: Problem) -> Problem:
    """Return a call of T queries and T + more keys."""
    made = draw_inputs(asked.config, asked.sizes.B, T, T + more, not more and asked.one_input)
    return change_call(asked, draw_arguments(asked, T, T + more), inputs=[X.astype(asked.queries.dtype) for X in made])


def past_window(T: int, asked: Problem) -> Problem:
    """Return a call of T tokens, of a layer with a small window and chunk, which stand for large ones."""
    config = asked.config
    left, right, chunk = (X and min(X, SMALL) for X in (*(config.window or (None, None)), config.chunk))
    layer = restore(replace(config, window=(left, right), chunk=chunk), asked.layer.weights, "numpy", asked.layer.seed)
    return longer(T, 0, change_call(asked, layer=layer))


def of_one_sample(change: Callable[..., Problem | None], *numbers: Any) -> Callable[[Problem], Problem | None]:
    """Apply a change with numbers that make a call long to one sample of it."""
    return lambda asked: change(*numbers, in_samples(1, asked).with_layers_of(asked))


def all_together(asked: Problem) -> Problem:
    """Return a call with many of these changes."""
    changes: tuple[Callable[[Problem], Problem | None], ...] = (
        longest, partial(other_weights, ".scale"), partial(other_weights, ".bias"), partial(further, 5),
        partial(in_wider, "float64"),
    )  # fmt: skip
    for change in changes:
        asked = change(asked) or asked
    return asked


def longest(asked: Problem) -> Problem:
    """Return a call of many tokens, longer than the window and the chunk."""
    T = FAR if memory(asked.config, FAR) <= MEMORY else TURNED
    return past_window(T, asked) if bounds(asked.config) else longer(T, 3, asked)


def probes(config: Config) -> Iterator[Probe]:
    """Yield the changes of a call from the plainest on, the last with all of them."""
    far = max(bounds(config), default=0) + 2
    for T in (11, TURNED, *[FAR] * (memory(config, FAR) <= MEMORY)) if bounds(config) else ():
        yield Probe(f"at least {far} tokens", of_one_sample(past_window, T), "window")
    for dtype in ("float32", "float64"):
        yield Probe(dtype, partial(in_wider, dtype))
    yield Probe("other norms", partial(other_weights, "_norm.scale"))
    yield Probe("other biases", partial(other_weights, ".bias"))
    yield Probe("other lengths, masks, biases or gates", partial(other_arguments, False))
    yield Probe("other positions, segments, lengths, masks, biases or gates", partial(other_arguments, True))
    yield Probe("queries that see no key, with empty_rows=True", hide_all)
    yield Probe("NaN in padding", nan_in_padding)
    yield Probe("an offset", partial(further, 0))
    yield Probe("an offset of each sample", partial(further, 5))
    yield Probe("other numbers", partial(other_numbers, 1.0, False))
    yield Probe("queries, keys and values that differ", partial(other_numbers, 1.0, True))
    yield Probe("more keys than queries", partial(longer, 7, 4))
    yield Probe(f"{TURNED} tokens", partial(longer, TURNED, 0))
    if memory(config, FAR) <= MEMORY:
        yield Probe(f"{FAR} tokens", of_one_sample(longer, FAR, 0))
    yield Probe(f"{TWICE} keys", of_one_sample(beyond_blocks, False))
    yield Probe(f"{TWICE} keys and an offset of {TWICE - 11}", of_one_sample(beyond_blocks, True))
    bound = min((X for X in (config.window or (None,))[:1] if X is not None), default=TABLE)
    yield Probe(f"an offset of {min(bound, TABLE)}", beyond_table, "table")
    for option, about in (("rotary", "table"), ("temperature", "temperature")):
        yield Probe(f"positions from {TABLE} on", partial(later, option, TABLE), about)
    yield Probe(f"{TURNED} tokens and an offset of each sample", lambda asked: further(5, longer(TURNED, 0, asked)))
    for size in (30.0, 1000.0):
        yield Probe(f"numbers {size:g} times as large", partial(other_numbers, size, True))
    yield Probe("all of this at once, in float64", of_one_sample(all_together))
