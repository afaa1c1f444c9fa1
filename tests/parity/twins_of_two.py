"""The twins of two mistakes at a time, both of one option: the second begins with what the first has made."""

import math

import numpy as np
from ports import Port

import mha
from mha.parity.diagnosis.mistakes import of_rotations

from . import by_hand
from .by_hand import argument, exponents, frequencies, of_places, option, port, scales, weighed
from .twins import BIAS, LENGTHS, causal, ending, groups, later, layered, lengths, modern, window

PAIRS = {
    ("the window is symmetric", "the window is one narrower on both sides"): (window, option(window=(2, 2))),
    ("the window is symmetric", "the window is one narrower to the right"): (window, option(window=(3, 2))),
    ("the window only looks back", "the window is one wider to the left"): (window, option(window=(4, 0))),
    ("the window is one wider to the left", "the window begins again at every offset"):
        (window, by_hand.both({"window": (4, 1)}, {"offset": 0})),
    ("lengths are one too long", "lengths are tiled, not repeated"): (lengths, lambda layer, inputs, call: port(
        lengths=by_hand.tiled_lengths)(layer, inputs, call | {"valid_lens": LENGTHS + 1})),
    ("causal order is off by one", "causal order begins again at every offset"): (later, argument(offset=1)),
    ("causal order is reversed", "causal order begins again at every offset"): (causal, port(
        seen=lambda self, i, j, causal: i - 1 <= j)),
    ("the scale is applied twice", "the default scale on top of the model's own"):
        (modern, option(scale=0.49 / math.sqrt(8))),
    ("the cap comes after the bias", "the cap is not multiplied back"): (modern, port(
        cap=lambda self, scores: scores, bias=lambda self, scores, bias: np.tanh((scores + bias) / 1.5))),
    ("the cap comes before the scale", "the cap is not multiplied back"): (modern, port(
        score=lambda self, q, k: np.einsum("bhid,bhjd->bhij", q, k),
        cap=lambda self, scores: 0.7 * np.tanh(scores / 1.5))),
    ("the bias is scaled too", "the bias has the other sign"): (modern, argument(score_bias=-0.7 * BIAS)),
    ("another base", "the whole head turns"): (modern, option(rotary=mha.Rotary(8, of_rotations.BASES[0]))),
    ("another base", "frequencies of the whole head"):
        (modern, frequencies(lambda rotary, d: by_hand.by_base(of_rotations.BASES[0], 3, 8))),
    ("the rotation is off by one", "the rotation goes backwards"):
        (modern, of_places(lambda role, places: -places - (role == "q"))),
    ("the rotation is off by one", "the table of angles is too short"):
        (ending, of_places(lambda role, places: np.minimum(places + (role == "q"), 511))),
    ("rotary components are paired the other way", "another base"):
        (modern, option(rotary=mha.Rotary(6, of_rotations.BASES[0], interleaved=True))),
    ("RMS norm for layer norm", "epsilon is outside the root"): (layered, port(norm=by_hand.rms_with_eps_outside)),
    ("another epsilon", "epsilon is outside the root"): (modern, port(root=lambda self, X, eps: X**0.5 + 1e-5)),
    ("keys have no norm", "epsilon is outside the root"): (modern, port(
        norm=lambda self, role, X: X if role == "k" else Port.norm(self, role, X),
        root=lambda self, X, eps: X**0.5 + 3e-3)),
    ("1 is added to the scale of a norm", "the norm of queries for that of keys"):
        (modern, scales(lambda name, X, weights: weights["q_norm.scale"] + 1)),
    ("the softmax is over another axis", "hidden keys are blanked after the softmax"):
        (causal, weighed(lambda scores, seen: exponents(scores, 2) * seen)),
    ("heads of values are tiled, not repeated", "heads are merged as (r, g)"): (groups, port(
        share_values=by_hand.tiled, merge=lambda self, X: Port.merge(self, X[:, [0, 3, 1, 4, 2, 5]]))),
}  # fmt: skip
