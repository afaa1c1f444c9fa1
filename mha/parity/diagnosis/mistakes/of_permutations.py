"""Known mistakes with kernels that are permuted for the other pairing of the rotation: columns in another order.

A checkpoint whose pairs are neighbours, as Meta's, is permuted head by head for code whose pairs are halves, as Hugging
Face's; and the other way round. Letters as in the lessons.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change, Mistake, only_where, weights_of, with_weights
from mha.parity.diagnosis.mistakes.of_rotations import rotates
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.pipeline.plan import Plan

Block = tuple[int, int]  # the columns that are permuted by themselves, and the pairs of these that change places
Permutation = tuple[bool, bool]  # whether in other blocks, and whether pairs become neighbours
WAYS = {"halves to neighbours": True, "neighbours to halves": False}  # the words, and whether pairs become neighbours
ONE = "columns of a head are permuted for the other pairing: not at all, or twice"


def order_of(interleave: bool, width: int, n: int) -> Array:
    """Return the order of the columns of one head, or block, whose first n pairs are permuted."""
    order = np.arange(2 * n).reshape((2, n) if interleave else (n, 2)).T.ravel()  # (2n,)
    return np.concatenate([order, np.arange(2 * n, width)])  # (d,)


def by_heads(order: Array, X: Array) -> Array:
    """Put the columns of each head into an order, (..., H*d); order: of one head (d,)."""
    return X.reshape(*X.shape[:-1], -1, len(order))[..., order].reshape(X.shape)  # (..., H*d)


def change_pairing(interleave: bool, names: Sequence[str], plan: Plan) -> Plan | None:
    """Put the components of each head that turn into the order of the other pairing, in some weights.

    interleave: from halves to neighbours, or else back; names: the beginnings of the names of weights.
    """
    order = order_of(interleave, plan.config.key_dim, len(plan.frequencies))
    chosen = weights_of(plan, *names)
    whatever = not plan.config.bias and all(name.endswith(".kernel") for name in names)  # no bias stays behind
    if whatever or not all(any(name.startswith(one) for name in chosen) for one in names):
        return None
    return with_weights(plan, {name: reorder_once(plan, X, order) for name, X in chosen.items()})


def reorder_once(plan: Plan, X: Array, order: Array) -> Array:
    """Return `by_heads` of an order, computed once."""
    return plan.once(("components", *order), partial(by_heads, order), X)


def in_both_ways(forms: Mapping[str, tuple[str, ...]]) -> dict[str, Change]:
    """Make the forms of `change_pairing`, by the names of weights of each."""
    return {f"{way}{', ' * bool(where)}{where}": partial(change_pairing, interleave, names)
            for where, names in forms.items() for way, interleave in WAYS.items()}  # fmt: skip


def permute(
    block: Callable[[Plan, int], Block | None], roles: str, steps: Sequence[Permutation], plan: Plan
) -> Plan | None:
    """Permute kernels and biases in other blocks of columns than heads have.

    block: from the number of heads to these blocks, None = it is impossible; roles: "q", "k", or both; steps:
    permutations, one after the other.
    """
    changed: dict[str, Array | None] = {}
    for role in roles:
        own = plan.config.key_dim, len(plan.frequencies)
        other = block(plan, plan.heads if role == "q" else plan.groups)
        if other is None or other == own:
            return None
        orders = [order_of(interleave, *(other if wrong else own)) for wrong, interleave in steps]
        for name, X in weights_of(plan, f"W_{role}.").items():
            changed[name] = functools.reduce(partial(reorder_once, plan), orders, X)
    return with_weights(plan, changed)


def of_other_heads(count: Callable[[Plan, int], int], plan: Plan, heads: int) -> Block | None:
    """Return the blocks of another number of heads; count: from the right number to that."""
    number, columns, n = count(plan, heads), heads * plan.config.key_dim, len(plan.frequencies)
    if number == 0 or columns % (2 * number):
        return None
    width = columns // number
    n = n if 2 * n < plan.config.key_dim else width // 2
    return (width, n) if 2 * n <= width else None


def of_whole_head(plan: Plan, heads: int) -> Block | None:
    """Return blocks of a head, of which all pairs are permuted."""
    d = plan.config.key_dim
    return (d, d // 2) if d % 2 == 0 else None


def of_width(plan: Plan, heads: int) -> int:
    """Count the heads as if each had the width D / H."""
    return heads * plan.config.key_dim // (plan.config.num_hiddens // plan.config.num_heads or 1)


BLOCKS: dict[str, tuple[Callable[[Plan, int], Block | None], str]] = {
    "W_k as of H heads": (partial(of_other_heads, lambda plan, heads: plan.heads), "k"),
    "W_q as of G heads": (partial(of_other_heads, lambda plan, heads: plan.groups), "q"),
    "both as of 2H heads": (partial(of_other_heads, lambda plan, heads: 2 * plan.heads), "qk"),
    "both as of H / 2 heads": (partial(of_other_heads, lambda plan, heads: plan.heads // 2), "qk"),
    "as of half as many heads": (partial(of_other_heads, lambda plan, heads: heads // 2), "qk"),
    "as of twice as many heads": (partial(of_other_heads, lambda plan, heads: 2 * heads), "qk"),
    "as of heads of width D / H": (partial(of_other_heads, of_width), "qk"),
    "over the whole head": (of_whole_head, "qk"),
    "over the whole head of W_q": (of_whole_head, "q"),
    "over the whole head of W_k": (of_whole_head, "k"),
}


def steps_of(interleave: bool) -> dict[str, tuple[Permutation, ...]]:
    """List the permutations in other blocks: alone, after the right one is undone, or before it."""
    return {
        "": ((True, interleave),),
        ", for the right blocks": ((False, not interleave), (True, interleave)),
        ", and paired for it": ((True, interleave), (False, not interleave)),
    }


KERNELS = "W_q.kernel", "W_k.kernel"

OF_PERMUTATIONS = only_where(
    rotates,
    Mistake("rotary components of W_q and W_k are in another order", ONE,
            "permute the columns of W_q and W_k once, and only if file and code pair otherwise", ("q", "k"),
            in_both_ways({"": ("W_q", "W_k"),
                          "in the biases alone": ("W_q.bias", "W_k.bias"),
                          "with the scales of the norms": ("W_q", "W_k", "q_norm", "k_norm"),
                          "in the scales of the norms alone": ("q_norm", "k_norm")})),
    *(Mistake(f"rotary components of {name} are in another order", ONE,
              f"permute the columns of {name} once, and only if file and code pair otherwise", (part,),
              in_both_ways({"": (name,), "in the bias alone": (f"{name}.bias",)}))
      for name, part in (("W_q", "q"), ("W_k", "k"))),
    Mistake("kernels are permuted without their biases", "columns of kernels alone are permuted for the other pairing",
            "permute the biases with their kernels",
            ("q", "k"), in_both_ways({"of W_q and W_k": KERNELS} | {f"of {name[:3]}": (name,) for name in KERNELS}),
            rare=True),
    Mistake("rotary components are permuted in other blocks", "columns are permuted for the other pairing as if of "
            "another number of heads, or over whole heads of which only a part turns",
            "permute within each head: H heads of W_q, G of W_k, and in each what turns alone", ("q", "k"),
            {f"{which}: {way}{more}": partial(permute, block, roles, steps)
             for which, (block, roles) in BLOCKS.items() for way, interleave in WAYS.items()
             for more, steps in steps_of(interleave).items()}, rare=True),
)  # fmt: skip
