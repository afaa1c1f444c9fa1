"""Mistakes that no exact formula gives: arithmetic in a lower precision, and dropout left on.

Their errors show them. Rounding is imitated: the error of the imitation has to be most of theirs, number by number.
With dropout, attention weights are either 0 or too large by one factor.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mha.core.cache import last_heads
from mha.parity.diagnosis.mistakes.bench import ALL, Bench
from mha.parity.diagnosis.mistakes.mistake import Form, State, forms_of
from mha.parity.diagnosis.mistakes.of_precision import ROUNDINGS, TF32
from mha.parity.diagnosis.pipeline.pieces import Array, widen
from mha.parity.diagnosis.search.explanations import Explanation, explain, merge_alike
from mha.parity.diagnosis.search.sample import Focus, ratios
from mha.parity.rule.kernel import KernelProblem
from mha.parity.rule.problem import Problem
from mha.parity.rule.rules import error, fraction

LEFT = 0.6  # the share of the error that an imitation of rounding may leave
ROUGHLY = 0.8  # the same share, in a few queries
ENOUGH = 24  # fewer numbers with errors prove nothing
ROWS = 200  # rows of heads in which dropout is looked for
DROPOUT = "some attention weights are 0, the rest is too large by 1 / (1 - p)"
DROPOUT_FIX = "turn dropout off: eval(), training=False, or deterministic=True"
ENUMERATED = 12  # keys of a query: up to so many, each set of dropped keys is tried


def roundings(problem: Problem, theirs: Mapping[str, Array], state: State, focus: Focus) -> list[Explanation]:
    """Find the roundings whose errors, together with these mistakes, are most of theirs.

    theirs: arrays by name; focus: a few queries; only what is near in them is computed in all.
    """
    forms: Sequence[Form] = forms_of(ROUNDINGS)
    if focus.rows != ALL:
        forms = [form for form, left, *_ in imitations(problem, theirs, state, focus, forms) if left <= ROUGHLY]
    found = [
        explain((*state, form), ratio, left, True)
        for form, left, ratio, size in imitations(problem, theirs, state, Focus(), forms)
        if left <= LEFT and size >= ENOUGH
    ]
    least = min((one.left for one in found), default=0.0)
    # Only the best imitations count: others imitate a part of the same rounding.
    best = [one for one in found if one.left <= max(1.25 * least, 0.05)]
    return merge_alike(sorted(best, key=lambda one: one.left))


def is_in_tf32(problem: Problem, output: Array) -> bool:
    """Return whether an output is wrong, and its errors are those of matrix products in TF32."""
    theirs = {"output": output}
    wrong = ratios(problem, theirs)["output"] > 1
    return wrong and any(one.mistakes == (TF32,) for one in roundings(problem, theirs, (), Focus()))


def imitations(
    problem: Problem, theirs: Mapping[str, Array], state: State, focus: Focus, forms: Sequence[Form]
) -> Iterator[tuple[Form, float, float, int]]:
    """Imitate each form of rounding in some samples and queries.

    Yields the form, the share of the errors that it leaves in the worst array that differs, the largest error by the
    bound, and the number of errors.
    """
    if not forms:
        return
    oracle, base = (Bench(problem, dtype, *focus) for dtype in ("float64", problem.config.dtype))
    if (exact := oracle.all_of(state, theirs)) is None:
        return
    there = {name: oracle.cut(name, X).astype(np.float64) for name, X in theirs.items()}
    counts = {name: np.broadcast_to(oracle.matters(name), X.shape) for name, X in there.items()}
    far = {name: np.where(counts[name], differences(X, exact[name]), 0) for name, X in there.items()}
    ratio = max(fraction(float(np.abs(X).max()), problem.expected(name).limit) for name, X in far.items())
    wrong = [name for name, times in ratios(problem, theirs).items() if times > 1]
    for form in forms:
        if (imitated := base.all_of((*state, form), theirs)) is not None:
            same = {name: np.where(counts[name], differences(X, exact[name]), 0) for name, X in imitated.items()}
            left = max(remaining(far[name], same[name]) for name in wrong)
            yield form, left, ratio, sum(int((far[name] != 0).sum()) for name in wrong)
        base.forget()


def differences(X: Array, exact: Array) -> Array:
    """Return how far numbers are from exact ones, 0 where both are NaN."""
    return np.where(np.isnan(X) & np.isnan(exact), 0, X - exact)


def remaining(far: Array, same: Array) -> float:
    """Return the share of the errors that an imitation leaves: 0 if there are none, infinite if any is not finite."""
    if not (np.isfinite(far).all() and np.isfinite(same).all()):
        return np.inf
    return fraction(float(np.sqrt(((far - same) ** 2).mean())), float(np.sqrt((far**2).mean())))


# Dropout


def dropout(problem: Problem, theirs: Mapping[str, Array]) -> list[Explanation]:
    """Explain theirs by dropped attention weights, if the others are too large by one factor."""
    if (found := find_dropout(problem, theirs)) is None:
        return []
    right = {name: problem.expected(name) for name in theirs}
    far = [
        fraction(error(problem.blank_unused(name, X), right[name].X), right[name].limit) for name, X in theirs.items()
    ]
    return [dataclasses.replace(found, ratio=max(far))]


def explain_dropout(p: float, left: float, sure: bool) -> Explanation:
    """Make the explanation of dropout by its p; ratio: still unknown."""
    how, fix = (f"p about {p:.2g}",), (DROPOUT_FIX,)
    return Explanation(("dropout left on",), how, (DROPOUT,), np.inf, left, sure, fix=fix)


def find_dropout(problem: Problem, theirs: Mapping[str, Array]) -> Explanation | None:
    """Find dropout by attention weights, or else by pooled heads."""
    right, there = problem.oracle["weights"], theirs.get("weights")
    if there is not None and error(there.astype(np.float64), right) > problem.expected("weights").limit:
        clear = problem.pairs_that_count & (right > 1e-3)
        return by_shares(problem, there.astype(np.float64)[clear] / right[clear])
    if (pooled := pooled_heads(problem, theirs)) is None:
        return None
    groups = problem.config.num_heads // problem.config.num_key_value_heads
    values = np.repeat(last_heads(problem.oracle, "v"), groups, 1)
    counts = np.where(np.isfinite(pooled).all(3), (problem.pairs_that_count & (right > 1e-3)).sum(3), 0)  # (B, H, Q)
    places = np.argsort(counts, axis=None, kind="stable")[(counts == 0).sum() :]
    rows = [np.unravel_index(place, counts.shape) for place in places[:ROWS]]
    parts = []
    for row in rows:
        seen = problem.pairs_that_count[row] & (right[row] > 1e-3)
        parts.append(values[row[:2]][seen] * right[row][seen][:, None])  # (keys, dv)
    shares = [solve_shares(part, pooled[row]) for part, row in zip(parts, rows, strict=True)]
    found = by_shares(problem, np.array(list(itertools.chain.from_iterable(shares))))
    return found or by_spread(parts, [pooled[row] for row in rows])


def by_shares(problem: Problem, shares: Array) -> Explanation | None:
    """Find dropout by weights, divided by the right ones: they are 0 or one factor, as often as this factor says."""
    shares = shares[np.isfinite(shares)]
    kept, dropped = shares[np.abs(shares) > 0.5], shares[np.abs(shares) <= 0.05]
    if len(kept) < 6 or len(dropped) < 3 or len(shares) < ENOUGH:
        return None
    factor, rough = float(np.median(kept)), 0.1 if "16" in problem.config.dtype else 0.02
    regular = float((np.abs(kept / factor - 1) <= rough).sum() + len(dropped)) / len(shares)
    p = 1 - 1 / factor
    if factor < 1.01 or regular < 0.97 or abs(len(dropped) / len(shares) - p) > 6 * np.sqrt(p * (1 - p) / len(shares)):
        return None
    return explain_dropout(p, 1 - regular, True)


def by_spread(parts: list[Array], pooled: list[Array]) -> Explanation | None:
    """Find dropout by pooled heads (dv): dropped parts (keys, dv) would spread their errors so. This is never sure."""
    spreads = []
    for part, row in zip(parts, pooled, strict=True):
        if len(part) > part.shape[1] >= 4:
            far = row - part.sum(0)
            spreads.append(far @ np.linalg.lstsq(part.T @ part, far, rcond=None)[0] / len(far))
    if len(spreads) < ENOUGH:
        return None
    mean, width = float(np.mean(spreads)), pooled[0].size
    if not 0.005 < mean < 2 or np.std(spreads) > 2 * mean * np.sqrt(2 / width):
        return None
    return explain_dropout(mean / (1 + mean), 1.0, False)


def solve_shares(parts: Array, pooled: Array) -> list[float]:
    """Solve for the shares with which parts (keys, dv) add up to pooled (dv); none if there is no sure solution."""
    if len(parts) <= parts.shape[1]:
        return np.linalg.lstsq(parts.T, pooled, rcond=None)[0].tolist() if np.linalg.cond(parts) < 1e3 else []
    return enumerate_shares(parts, pooled) if len(parts) <= ENUMERATED and parts.shape[1] >= 3 else []


def enumerate_shares(parts: Array, pooled: Array) -> list[float]:
    """Find the shares, 0 or one factor, with which parts (keys, dv) add up to pooled (dv); NaN if there are none."""
    n = len(parts)
    chosen = (np.arange(1, 2**n)[:, None] >> np.arange(n) & 1).astype(np.float64)  # (2^n - 1, keys)
    sums = chosen @ parts  # (2^n - 1, dv)
    factors = (sums @ pooled) / np.maximum((sums * sums).sum(1), 1e-300)
    far = np.abs(sums * factors[:, None] - pooled).max(1)
    far[factors < 0.9] = np.inf
    best = int(far.argmin())
    return (chosen[best] * factors[best]).tolist() if far[best] <= 1e-3 * np.abs(pooled).max() else [np.nan]


def pooled_heads(problem: Problem, theirs: Mapping[str, Array]) -> Array | None:
    """Return their pooled heads (B, H, Q, dv) in float64, given or solved from the output; None if that is not sure."""
    if "pooled" in theirs:
        return theirs["pooled"].astype(np.float64)
    weights, config = problem.layer.weights, problem.config
    if isinstance(problem, KernelProblem):  # its output is nothing else
        return problem.by_heads("output", theirs["output"]).astype(np.float64) if "output" in theirs else None
    merged = theirs.get("merged")
    if merged is None:
        kernel, output = weights["W_o.kernel"].astype(np.float64), theirs.get("output")
        if output is None or kernel.shape[0] > kernel.shape[1]:
            return None
        products = kernel @ kernel.T  # (H*dv, H*dv)
        if not np.linalg.cond(products, 1) < 1e9:
            return None
        bias = weights.get("W_o.bias", np.zeros(1)).astype(np.float64)
        flat = np.linalg.solve(products, kernel @ (output - bias).reshape(-1, kernel.shape[1]).T).T  # (B*Q, H*dv)
        merged = flat.reshape(*output.shape[:2], config.num_heads, -1).transpose(0, 2, 1, 3)  # (B, H, Q, dv)
    merged = merged.astype(np.float64)
    if problem.call.head_gates is None:
        return merged
    gates = np.broadcast_to(widen(problem.call.head_gates), (len(merged), config.num_heads))[:, :, None, None]
    with np.errstate(all="ignore"):
        return merged / gates
