"""The twins of mistakes with moved masks, and with windows that look ahead, see `twins`."""

from functools import partial

import numpy as np

from . import by_hand
from .by_hand import Case, both

PLAIN = {"num_hiddens": 24, "num_heads": 4, "bias": True}
MASK = np.random.default_rng(9).random((3, 1, 5, 7)) < 0.6

masked = Case(PLAIN, {"mask": MASK})
in_window = Case(PLAIN | {"window": (3, 0)}, {"causal": True, "offset": 1})
TWINS = {}
add = partial(by_hand.add, TWINS)

OF_BEFORE, OF_AFTER = [6, 0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 0]  # whose mask each of the seven keys has
add("the mask is moved", masked, **{
    "of the one before": both({}, {"mask": MASK[..., OF_BEFORE]}),
    "of the one after": both({}, {"mask": MASK[..., OF_AFTER]})})  # fmt: skip
add("the window is symmetric", in_window, **{
    "and causal order is ignored": both({"window": (3, 3)}, {"causal": False})})  # fmt: skip
