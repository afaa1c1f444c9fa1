"""Gradients of right code in half precision that rounds more often than plain NumPy, simulated, and bounds by them.

Back through a softmax most of a number cancels, if keys are alike or if one has all the weight. Then what is left is as
large as the rounding of what cancels. Plain NumPy keeps that in float32, most frameworks do not: their error is many
times its own, but not more than that of one of the ways to round here.

Letters as in the lessons.
"""

import dataclasses
import functools
from functools import partial
from typing import Any

import numpy as np

from mha.parity.diagnosis.pipeline.backward import Backward, add, backward
from mha.parity.diagnosis.pipeline.pieces import Array, Steps, beside_sinks, half_shares, half_softmax
from mha.parity.diagnosis.pipeline.plan import make_plan, replace
from mha.parity.rule.kernel import KernelProblem
from mha.parity.rule.layouts import GRADIENT, INPUTS, OF_INPUTS
from mha.parity.rule.problem import Expected, Means, Problem
from mha.parity.rule.rounding import Into, one_by_one, through
from mha.parity.rule.rules import bound, mean_bound, mean_error
from mha.parity.rule.simulation import LOG2E

PLACES = "merged", "pooled", "gates", "weights", "scaled_q", "scaled_k", "q", "k", "v"  # of `Backward.pass_on`
CANCELLING = 3.0  # times plain NumPy's error that code in steps has where most of a number cancels
TILE = 32  # queries whose parts of a gradient by keys and values a kernel adds before it rounds


@dataclasses.dataclass(frozen=True)
class HalfGradients(Problem):
    """A call in half precision; what its gradients may be off by follows from simulated rounding."""

    @functools.cached_property
    def rounded_gradients(self) -> tuple[Steps, ...]:
        """Return every gradient as right code has them that rounds more often than plain NumPy."""
        return rounded_gradients(self)

    def expected_gradient(self, name: str, oracle: Array, base: Array, scale: float) -> Expected:
        """Return the expected gradient, and its bounds; scale: as of `bound`."""
        limit, means = bounds_of(self, name, oracle, base, scale)
        return Expected(oracle, limit, means=means)

    def forget(self) -> None:
        """Free the steps and gradients, which are computed again when they are asked for."""
        super().forget()
        vars(self).pop("rounded_gradients", None)


class HalfKernelGradients(HalfGradients, KernelProblem):
    """The same for a kernel, whose limits are those of each text and head."""

    def expected_gradient(self, name: str, oracle: Array, base: Array, scale: float) -> Expected:
        """Return the expected gradient, and its bounds."""
        others = base, *(found[name] for found in self.rounded_gradients)
        limits = np.max([self.limits(GRADIENT + name, oracle, X) for X in others], 0)
        return self.within(limits, oracle)._replace(means=bounds_of(self, name, oracle, base, scale)[1])


def rounded_gradients(asked: Problem) -> tuple[Steps, ...]:
    """Return the gradients of a fused kernel, of code in steps, and of steps whose softmax sums in half precision.

    Of a kernel also those of one that computes scores again, from keys that it has scaled.
    """
    dtype = asked.config.dtype
    into, in_half = through(dtype), partial(one_by_one, dtype)
    plan, found = make_plan(asked, dtype), []
    roundings = (Fused, add), (InSteps, add), (InSteps, in_half), (Again, add)
    for rounding, sums in roundings[: 4 if isinstance(asked, KernelProblem) else 3]:
        steps = {"rounded": into, "after": into, "softmax": partial(half_softmax, into, sums)}
        made: Any = object.__new__(rounding)  # `dataclasses.replace` would make a Backward
        back = backward(replace(plan, **(steps if rounding is InSteps else {})), asked.cotangent)
        vars(made).update(vars(back), into=into, sums=sums, on_the_way=dict.fromkeys(PLACES, into))
        if rounding is InSteps:
            vars(made).update(add=in_half)  # of rows, too
        found.append({name: into(X) for name, X in made.gradients().items()})
    return tuple(found)


def bounds_of(asked: HalfGradients, name: str, oracle: Array, base: Array, scale: float) -> tuple[float, Means]:
    """Return the bound of the largest error of a gradient, and right arrays with those of the root mean square.

    scale: as of `bound`. A gradient may be near the oracle, or near that of a softmax which sums in half precision: its
    error is large, but the same in all such code.
    """
    dtype, names = asked.config.dtype, OF_INPUTS if name == INPUTS else (name,)
    fused, steps, sums, *more = (
        in_shape(np.sum([found[each] for each in names], 0), oracle.shape) for found in asked.rounded_gradients
    )
    # What cancels leaves a rounding of gradients of the same kind. A bias gets the sum of all rows, which cancel, too.
    peers = [mean_error(X, 0 * X) for each, X in asked.oracle_gradients.items() if kind(each) == kind(name)]
    floor = max([scale / 16, *(X / (4 if kind(name) == "bias" else 64) for X in peers)])
    others = [base, fused, steps, *more]
    if mean_error(steps, oracle) > CANCELLING * mean_error(base, oracle):
        others.append(sums)
    mean = mean_bound(dtype, oracle, others, floor)
    limit = max(bound(dtype, oracle, X, gradient=True, scale=max(scale, floor)) for X in (*others, sums))
    return limit, ((oracle, mean), (sums, max(mean, mean_error(sums, oracle))))


def in_shape(X: Array, shape: tuple[int, ...]) -> Array:
    """Return a gradient in the shape of the call's array, which may be one for all samples."""
    return np.reshape(X if X.size == np.prod(shape) else X.sum(0), shape)


def kind(name: str) -> str:
    """Return what a gradient is by: "kernel", "bias", "scale", or "" for inputs and the like."""
    return name.rpartition(".")[2] if "." in name else ""


@dataclasses.dataclass(frozen=True)
class Fused(Backward):
    """Gradients of a kernel that takes the sum over a row from the rounded output, and adds up tiles of queries."""

    into: Into = add

    @property
    def weights(self) -> Array:
        """Return the attention weights that it computes again, (B, H, Q, K)."""
        return self.results["weights"]

    def through_pooling(self, by_pooled: Array) -> tuple[Array, Array]:
        """Return the gradients by attention weights, (B, H, Q, K), and by heads of values, (B, G, K, dv)."""
        pooled, weights = (self.into(np.asarray(X, np.float32)) for X in (self.results["pooled"], self.weights))
        total = (by_pooled * pooled).sum(-1, keepdims=True)  # (B, H, Q, 1)
        vars(self)["through_softmax"] = partial(self.around, total)
        return by_pooled @ self.heads_of("v").swapaxes(2, 3), self.in_tiles(weights, by_pooled)

    @staticmethod
    def around(total: Array, back: Any, by_weights: Array) -> Array:
        """Return the gradient by scores in the softmax; total: the sums over the rows."""
        return np.asarray(back.into(back.shares * (np.where(back.in_softmax, by_weights, 0) - total)))

    def by_keys(self, scaled: Array) -> Array:
        """Return the gradient by heads of keys, (B, G, K, d)."""
        return self.in_tiles(scaled, self.heads_of("q"))

    def in_tiles(self, pairs: Array, rows: Array) -> Array:
        """Multiply pairs (B, H, Q, K), transposed, by rows (B, H, Q, d): (B, G, K, d)."""
        total = np.zeros((), np.float32)
        for first in range(0, pairs.shape[2], TILE):
            some = slice(first, first + TILE)
            total = self.into(total + pairs[:, :, some].swapaxes(2, 3) @ rows[:, :, some])
        return self.unshare(total, self.plan.groups)


@dataclasses.dataclass(frozen=True)
class Again(Fused):
    """Gradients of a kernel that computes weights again, by rounded keys times the scale and the first ones' sums."""

    @functools.cached_property
    def moved(self) -> Array:
        """Return by what that multiplies the weights, (B, H, Q, K)."""
        k, scale = self.heads_of("k"), np.float32(self.plan.scale * LOG2E)
        by_keys = self.heads_of("q") @ (self.into(k * scale) - k * scale).swapaxes(2, 3)  # (B, H, Q, K)
        return np.exp(self.through_cap(self, by_keys / LOG2E))

    @property
    def weights(self) -> Array:
        """Return the weights so computed, (B, H, Q, K)."""
        return super().weights * self.moved

    @property
    def shares(self) -> Array:
        """Return these weights, and those of sinks as one more column, (B, H, Q, K or K + 1)."""
        return super().shares * beside_sinks(self.plan, self.moved, 1)


@dataclasses.dataclass(frozen=True)
class InSteps(Backward):
    """Gradients of code that rounds each step; sums: adds up exponentials."""

    into: Into = add
    sums: Into = add

    @property
    def shares(self) -> Array:
        """Return the softmax of all scores, each step rounded."""
        return half_shares(self.into, self.sums, self.plan, self.results["scores"], self.visible)

    def through_weights(self, by_weights: Array) -> tuple[Array, Array, Steps]:
        """Return the gradients by biased scores, by dot products, and by sinks, as `Backward` does."""
        vars(self)["through_softmax"] = self.rounded
        return super().through_weights(by_weights)

    @staticmethod
    def rounded(back: Any, by_weights: Array) -> Array:
        """Return the gradient by scores in the softmax, each step rounded."""
        into, shares = back.into, back.shares
        products = into(shares * np.where(back.in_softmax, by_weights, 0))
        return np.asarray(into(products - into(shares * into(products.sum(-1, keepdims=True)))))
