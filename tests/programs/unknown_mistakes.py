"""How often `mha.parity.diagnose` names a known mistake, with confidence, for one that is not in its catalogue.

python tests/programs/unknown_mistakes.py [NUMBER] [FIRST SEED] [DTYPE]
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np

from mha import parity
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.pipeline import parts, pieces
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.rule.problem import problem

sys.path.extend([str(Path(__file__).parents[1] / name) for name in ("", "helpers")])
import planted

PLAIN = [call for call in planted.CALLS if not call.nan]


def in_weight(rng, plan):
    """Noise in one weight, of any size, or some of it gone."""
    name = rng.choice(sorted(plan.weights))
    X = plan.weights[name].copy()
    kind = rng.integers(4)
    if kind == 0:
        X += (10 ** rng.uniform(-5, 0) * X.std() * rng.normal(size=X.shape)).astype(X.dtype)
    elif kind == 1:
        X[..., rng.integers(X.shape[-1])] = 0
    elif kind == 2:
        X = X[..., rng.permutation(X.shape[-1])]
    else:
        X = (X * rng.uniform(0.1, 3, X.shape[-1:])).astype(X.dtype)  # one factor may be another scale
    return {"weights": plan.weights | {name: X}}


def in_scale(rng, plan):
    """Another temperature of each head."""
    factors = rng.uniform(0.1, 4, (plan.heads, 1, 1))

    def scores(plan, q, k):
        return (pieces.scores(plan, q, k) * factors).astype(pieces.widen(q).dtype)

    return {"scores": scores}


def in_inputs(rng, plan):
    """Rows in another order, or noise in them."""
    name = rng.choice(["queries", "keys", "values"])
    X = getattr(plan, name)
    kind = rng.integers(3)
    if kind == 0:
        return {name: np.roll(X, rng.integers(1, X.shape[1]), 1)}
    if kind == 1:
        return {name: X[:, rng.permutation(X.shape[1])]}
    return {name: (X + 10 ** rng.uniform(-5, 0) * rng.normal(size=X.shape)).astype(X.dtype)}


def in_pairs(rng, plan):
    """Other pairs are hidden, at random."""
    size = plan.queries.shape[1], plan.keys.shape[1]
    seen = rng.random((1, 1, *size)) < rng.uniform(0.4, 0.95)
    return {"hiding": dict(plan.hiding) | {"at random": lambda plan: seen}}


def in_weighing(rng, plan):
    """Something else than a softmax, or its weights with noise."""
    kind = rng.integers(4)
    size = 10 ** rng.uniform(-4, 0)

    def weigh(plan, scores, visible):
        shares = pieces.softmax(plan, scores, visible)
        if kind == 0:
            return np.where(visible, 1 / (1 + np.exp(-scores)), 0).astype(scores.dtype)
        if kind == 1:
            return (shares**2).astype(scores.dtype)  # which add up to less than 1; else it is twice the scale
        noise = rng.normal(size=shares.shape) if kind == 2 else rng.uniform(-1, 1, shares.shape)
        return (shares * (1 + size * noise)).astype(scores.dtype)

    return {"softmax": weigh}


def in_order(rng, plan):
    """The heads in another order, but for the one that the catalogue has, (r, g)."""
    known = np.arange(plan.heads).reshape(plan.groups, -1).T.ravel()  # (H,)
    order = known
    while np.array_equal(order, known):
        order = rng.permutation(plan.heads)
    return {"merge": lambda X: pieces.merge(X[:, order])}


KINDS = (in_weight, in_weight, in_scale, in_inputs, in_pairs, in_weighing, in_order)


def unknown(seed, dtype="float32"):
    """A layer, what it is called with, and the steps of an implementation with a random mistake; its kind."""
    rng = np.random.default_rng(seed)
    call = PLAIN[rng.integers(len(PLAIN))]
    layer, inputs, arguments = call.made(dtype)
    plan = make_plan(problem(layer, *inputs, planted.DEFAULTS | arguments, None), dtype)
    kind = KINDS[rng.integers(len(KINDS))]
    changed = dataclasses.replace(plan, **kind(rng, plan))
    steps, before = {}, {}
    with np.errstate(all="ignore"):
        for part in parts.PARTS:
            some, before[part] = parts.compute(part, changed, before)
            steps |= some
        if rng.random() < 0.2:  # and something behind it all
            steps["output"] = (steps["output"] * rng.uniform(0.5, 2) + rng.normal()).astype(numpy_dtype(dtype))
    return layer, inputs, arguments, steps, kind.__name__


def named(seed, dtype="float32"):
    """The names given with confidence, from the output alone and from all steps; and whether the mistake shows.

    They are those of mistakes, or of the arguments of another call.
    """
    layer, inputs, arguments, steps, kind = unknown(seed, dtype)
    reports = [
        parity.compare(layer, given, *inputs, **arguments, empty_rows=True) for given in (steps["output"], steps)
    ]
    return [(bool(report), report.diagnosis.mistakes or tuple(report.diagnosis.call), kind) for report in reports]


def main(number=200, first=0, dtype="float32"):
    """Print how many of so many unknown mistakes are named wrongly."""
    found = [named(seed, dtype) for seed in range(first, first + number)]
    for which, place in (("output alone", 0), ("all steps", 1)):
        results = [each[place] for each in found]
        shown = [result for result in results if not result[0]]
        wrong = [result for result in shown if result[1]]
        print(f"{which}: {len(wrong)} of {len(shown)} unknown mistakes were named")
        for _, mistakes, kind in wrong:
            print(f"  {kind}: {', '.join(mistakes)}")


if __name__ == "__main__":
    main(*[int(word) if word.isdigit() else word for word in sys.argv[1:]])
