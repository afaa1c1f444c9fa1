"""Draw inputs and arguments of a call at random, within the declarations of a layer and of a call."""

import numpy as np

from mha.core.call import ROWS, axes_of
from mha.core.options.config import Config
from mha.parity.rule.problem import Problem

Array = np.ndarray
QUIET = 1e-3  # of every third token, so that an epsilon matters
SEEN = 0.6  # the share of a mask that is True


def widths(config: Config) -> tuple[int, int, int]:
    """Return the widths of queries, keys and values."""
    return config.query_size, config.key_size, config.value_size


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
