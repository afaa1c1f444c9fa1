"""Known mistakes with the rotation of queries and keys: positions, frequencies, pairs and order of components."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from mha.config import numpy_dtype
from mha.parity.mistakes.mistake import Change, Mistake, one, with_weights
from mha.parity.pipeline import pieces
from mha.parity.pipeline.pieces import Array
from mha.parity.pipeline.plan import Plan

BASES = (10000.0, 500000.0, 1e6, 100000.0, 1e7, 160000.0, 50000.0, 25000.0, 1000.0, 100.0)
FACTORS = (8, 32, 4, 2, 16)  # of linear scaling
TABLES = (512, 1024, 2048, 4096, 8192)  # positions


def turned_by(places: Callable[[Plan, str, Array], Array], plan: Plan) -> Plan | None:
    """Turn by other positions; places: a function of the plan, the role and those without this mistake."""
    if plan.frequencies is None:
        return None
    before = plan.rotary_offsets
    if before is None:
        return replace(plan, rotary_offsets=places)
    return replace(plan, rotary_offsets=lambda plan, role, X: places(plan, role, before(plan, role, X)))


def of_one(role: str, by: int) -> Callable[[Plan, str, Array], Array]:
    """Make a function that moves the positions of one role by so many."""
    return lambda plan, given, places: places + by * (given == role)


def begun_again(plan: Plan, role: str, places: Array) -> Array:
    """Return the positions of queries without the offset."""
    return places - plan.offsets if role == "q" else places


def by_rows(plan: Plan) -> Plan | None:
    """Turn by the numbers of rows, where positions are given."""
    if plan.positions is None and plan.key_positions is None:
        return None
    return turned_by(lambda plan, role, places: np.arange(places.shape[1])[None], plan)


def of_first(plan: Plan) -> Plan | None:
    """Turn all samples by the positions of the first."""
    return turned_by(lambda plan, role, places: places[:1], plan) if len(plan.queries) > 1 else None


def within_table(size: int, plan: Plan, role: str, places: Array) -> Array:
    """Return positions up to the last one of a table of so many."""
    return np.minimum(places, size - 1)


def paired(plan: Plan) -> Plan | None:
    """Pair the components the other way."""
    return None if plan.frequencies is None else replace(plan, interleaved=not plan.interleaved)


def of_base(base: float | None, plan: Plan) -> Plan | None:
    """Take the frequencies of another base; None = those of the same base, without the model's own scaling."""
    if plan.frequencies is None:
        return None
    n, base = len(plan.frequencies), base or plan.base
    return replace(plan, base=base, frequencies=base ** (-np.arange(n) / n))


def slower(factor: float, base: float | None, plan: Plan) -> Plan | None:
    """Divide all frequencies of a base by a factor; None = the layer's base, the only one if they are plain."""
    rotary = plan.config.rotary
    plain = rotary is not None and rotary.frequencies is None
    made = None if plain and base else of_base(base, plan)
    return made and replace(made, frequencies=made.frequencies / factor)


def mixed_up(plan: Plan) -> Plan | None:
    """Slow down the fast pairs by what the slow ones should be slowed down by, and the other way round."""
    plain = of_base(None, plan)
    if plain is None:
        return None
    shares = plan.frequencies / plain.frequencies
    if np.ptp(shares) < 1e-6:
        return None
    return replace(plan, frequencies=plain.frequencies * (shares.max() + shares.min() - shares))


def magnified(roles: tuple[str, ...], plan: Plan) -> Plan | None:
    """Multiply only these by the magnitude."""
    return None if plan.magnitude == 1 else replace(plan, magnified=roles)


def whole_heads(plan: Plan) -> Plan | None:
    """Multiply the scores by the square of the magnitude."""
    if plan.magnitude == 1 or 2 * len(plan.frequencies) == plan.config.key_dim:
        return None
    return replace(plan, magnified=(), scale=plan.scale * plan.magnitude**2)


def of_head(plan: Plan) -> Plan | None:
    """Count the frequencies over the whole head, if only a part of it turns."""
    d = plan.config.key_dim
    if plan.frequencies is None or 2 * len(plan.frequencies) == d:
        return None
    return replace(plan, frequencies=plan.base ** (-2 * np.arange(len(plan.frequencies)) / d))


def whole_head(plan: Plan) -> Plan | None:
    """Turn the whole head, if only a part of it should turn."""
    n = plan.config.key_dim // 2
    if plan.frequencies is None or len(plan.frequencies) == n or plan.config.key_dim % 2:
        return None
    return replace(plan, frequencies=plan.base ** (-np.arange(n) / n))


def last_components(plan: Plan) -> Plan | None:
    """Turn the last components of a head, if only a part of it turns."""
    if plan.frequencies is None or 2 * len(plan.frequencies) == plan.config.key_dim:
        return None
    right = plan.rotate

    def rotate(plan: Plan, X: Array, places: Array) -> Array:
        kept = X.shape[-1] - 2 * len(plan.frequencies)
        return np.concatenate([X[..., :kept], right(plan, X[..., kept:], places)], -1)

    return replace(plan, rotate=rotate)


def repaired(interleave: bool, names: Iterable[str], plan: Plan) -> Plan | None:
    """Put the components of each head that turn into the order of the other pairing, in some weights.

    interleave: from halves to neighbours, or else back; names: the beginnings of the names of weights.
    """
    if plan.frequencies is None:
        return None
    n, d = len(plan.frequencies), plan.config.key_dim
    order = np.arange(2 * n).reshape((2, n) if interleave else (n, 2)).T.ravel()  # (2n,)
    order = np.concatenate([order, np.arange(2 * n, d)])  # (d,)

    def reordered(X: Array) -> Array:
        return X.reshape(*X.shape[:-1], -1, d)[..., order].reshape(X.shape)  # (..., H*d)

    chosen = {name: X for name, X in plan.weights.items() if name.startswith(tuple(names))}
    changed = {name: plan.once(("components", *order), reordered, X) for name, X in chosen.items()}
    return with_weights(plan, changed) if changed else None


def in_both_ways(forms: Mapping[str, tuple[str, ...]]) -> dict[str, Change]:
    """Make the forms of `repaired`, by the names of weights of each."""
    ways = {"halves to neighbours": True, "neighbours to halves": False}
    return {
        f"{way}{', ' * bool(where)}{where}": partial(repaired, interleave, names)
        for where, names in forms.items()
        for way, interleave in ways.items()
    }


def again(plan: Plan, role: str, places: Array) -> Array:
    """Return the positions of keys doubled, if they are before the first query: those that a cache holds."""
    return np.where(places < plan.offsets[:, :1], 2 * places, places) if role == "k" else places


def values_too(plan: Plan) -> Plan | None:
    """Turn values by the positions of keys, if their heads are wide enough."""
    if plan.frequencies is None or plan.config.value_dim < 2 * len(plan.frequencies):
        return None
    right = plan.share_values

    def share_values(X: Array, times: int) -> Array:
        return right(pieces.rotate(plan, X, plan.key_places[0, 0]), times)

    return replace(plan, share_values=share_values)


def in_half(dtype: str, plan: Plan) -> Plan | None:
    """Round the frequencies to half precision."""
    if plan.frequencies is None:
        return None
    return replace(plan, frequencies=plan.frequencies.astype(numpy_dtype(dtype)).astype(np.float64))


def coarse(plan: Plan) -> Plan | None:
    """Round positions to bfloat16, which changes those beyond 256."""
    if plan.frequencies is None:
        return None
    import ml_dtypes

    return turned_by(lambda plan, role, places: places.astype(ml_dtypes.bfloat16).astype(np.float64), plan)


# Of bases beyond these, see `search.numbers`.
ANOTHER_BASE = Mistake(
    "another base", "frequencies of another base of the rotation", ("q", "k"),
    {f"{base:g}": partial(of_base, base) for base in BASES}
    | {"the same, without the model's own scaling": partial(of_base, None)})  # fmt: skip


OF_ROTATIONS = (
    Mistake("rotary components are paired the other way", "halves for neighbours, or neighbours for halves", ("q", "k"),
            one(paired)),
    Mistake("the rotation is off by one", "queries or keys turn as their neighbours should", ("q", "k"),
            {"queries one further": partial(turned_by, of_one("q", 1)),
             "queries one back, or keys one further": partial(turned_by, of_one("k", 1)),
             "both, from position 1 on": partial(turned_by, lambda plan, role, places: places + 1)}),
    Mistake("the rotation begins again at every offset", "positions of queries start at 0 after a cache", ("q", "k"),
            {"of queries": partial(turned_by, begun_again)}),
    Mistake("the rotation goes by rows", "the positions that are given are left out of the rotation", ("q", "k"),
            one(by_rows)),
    Mistake("all samples turn as the first", "positions of the first sample are taken for all", ("q", "k"),
            one(of_first)),
    Mistake("the rotation goes backwards", "sines have the other sign", ("q", "k"),
            one(partial(turned_by, lambda plan, role, places: -places))),
    Mistake("the rotation is forgotten", "queries or keys do not turn", ("q", "k"),
            {"of both": partial(turned_by, lambda plan, role, places: 0 * places),
             "of queries": partial(turned_by, lambda plan, role, places: places * (role != "q")),
             "of keys": partial(turned_by, lambda plan, role, places: places * (role != "k"))}),
    ANOTHER_BASE,
    Mistake("frequencies are scaled linearly", "all are divided by one factor, where the model has its own, or none is",
            ("q", "k"),
            {f"by {factor}{f', base {base:g}' if base else ''}": partial(slower, factor, base)
             for base in (None, 500000.0) for factor in FACTORS}),
    Mistake("keys turn twice", "as a cache stores them, and again as they are read", ("q", "k"),
            {"": partial(turned_by, lambda plan, role, places: places * (1 + (role == "k"))),
             "those before the first query": partial(turned_by, again),
             "queries, too": partial(turned_by, lambda plan, role, places: 2 * places)}),
    Mistake("values turn, too", "the rotation is applied to values as to keys", ("pooled",), one(values_too)),
    Mistake("slow and fast pairs are mixed up", "the fast ones are slowed down by what the slow ones should, as where "
            "the ends of YaRN's ramp are swapped", ("q", "k"), one(mixed_up)),
    Mistake("the magnitude of the rotation is forgotten", "cosines and sines are not multiplied by it", ("q", "k"),
            {"": partial(magnified, ()), "of keys": partial(magnified, ("q",)),
             "of queries": partial(magnified, ("k",))}),
    Mistake("the magnitude multiplies whole heads", "or scores by its square, where only some components turn",
            ("q", "k", "scores"), one(whole_heads)),
    Mistake("frequencies in half precision", "as where a whole model is cast, with its table of frequencies",
            ("q", "k"), {dtype: partial(in_half, dtype) for dtype in ("bfloat16", "float16")}),
    Mistake("frequencies of the whole head", "base ** (-2i / d) where only `dim` components turn", ("q", "k"),
            one(of_head)),
    Mistake("the whole head turns", "all components turn, where only `dim` should", ("q", "k"), one(whole_head)),
    Mistake("positions in half precision", "positions beyond 256 are rounded to bfloat16 before they turn",
            ("q", "k"), one(coarse)),
    Mistake("the last components turn", "the last `dim` components of a head turn instead of the first", ("q", "k"),
            one(last_components)),
    Mistake("the table of angles is too short", "positions beyond its end turn as the last one does", ("q", "k"),
            {f"{size} positions": partial(turned_by, partial(within_table, size)) for size in TABLES}),
)  # fmt: skip


OF_PERMUTATIONS = (
    Mistake("rotary components of W_q and W_k are in another order", "columns of a head are permuted for the other "
            "pairing: not at all, or twice", ("q", "k"),
            in_both_ways({"": ("W_q", "W_k"), "in the biases alone": ("W_q.bias", "W_k.bias"),
                          "with the scales of the norms": ("W_q", "W_k", "q_norm", "k_norm"),
                          "in the scales of the norms alone": ("q_norm", "k_norm")})),
    *(Mistake(f"rotary components of {name} are in another order", "columns of a head are permuted for the other "
              "pairing: not at all, or twice", (part,), in_both_ways({"": (name,)}))
      for name, part in (("W_q", "q"), ("W_k", "k"))),
)  # fmt: skip
