"""The call of a kernel as a problem: attention of queries, keys and values that are heads already, not projected.

Letters as in the lessons. A text is a sample, or one of several that are packed into one; rows are its tokens.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.call import record_steps
from mha.core.options.config import Config, numpy_dtype
from mha.core.options.names import FloatName
from mha.parity.rule.heads import (
    KernelLayout,
    at_least_float32,
    by_samples,
    finite,
    flat,
    heads_first,
    log_sum_exp,
    merge,
    scale_of,
    split,
    unshare,
)
from mha.parity.rule.layouts import GRADIENT, LSE, OF_INPUTS, Turn
from mha.parity.rule.problem import Expected, Named, Problem
from mha.parity.rule.rules import UNIT, row_bounds

# The arrays of a kernel: its own name of each, and ours.
ARRAYS = {"output": "output", "lse": LSE, **{f"d{name[0]}": GRADIENT + name for name in OF_INPUTS}}
BY_KEYS = GRADIENT + "keys", GRADIENT + "values"
IN_HALF = 2  # units of half precision that the log-sum-exp may be off
LEAST = 1e-200  # share of a limit, of numbers that must be 0: what is not exceeds it, without a division by 0
FEW = 256  # terms of which a sum in float32, one after the other, errs no more than 16 units
OF_SCORES = 1 / 8  # how far rounding moves a score, by the unit and the magnitude of its products, in units of 16


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What a kernel has of a layer: the options of attention, and sinks (H,), or None."""

    config: Config
    sinks: np.ndarray | None = None

    @property
    def weights(self) -> Named:
        """Return its weights by name: the sinks, if there are any."""
        return {} if self.sinks is None else {"sinks": self.sinks}

    @functools.cached_property
    def layer(self) -> Any:
        """Return the lesson's layer that pools as the kernel does; its projections are not used."""
        layer = dispatch.lesson("numpy").MultiHeadAttention(self.config)
        vars(layer).update(self.weights)
        return layer

    def in_dtype(self, dtype: FloatName) -> "Kernel":
        """Return the same in another dtype; sinks stay in float32 at least, as kernels take them."""
        sinks = None if self.sinks is None else self.sinks.astype(at_least_float32(dtype))
        return Kernel(dataclasses.replace(self.config, dtype=dtype), sinks)


@dataclasses.dataclass(frozen=True)
class KernelProblem(Problem):
    """A call of a kernel; queries, keys and values are heads side by side, (B, T, H*d), and so are their gradients.

    The layer is a `Kernel`. layout: of the arrays that were given.
    """

    layout: KernelLayout = "BHTD"

    @functools.cached_property
    def wide(self) -> Any:
        """Return the kernel in float64."""
        return self.layer.in_dtype("float64")  # type: ignore[attr-defined]

    def names(self) -> list[str]:
        """List the names of all arrays that can be compared."""
        return list(ARRAYS.values())

    def title(self, name: str) -> str:
        """Return the name of an array in a report: the kernel's own."""
        return next(title for title, own in ARRAYS.items() if own == name)

    def turn(self, name: str, X: np.ndarray, layout: str | None = None) -> Turn | str:
        """Return the function from an array in the layout of the call to the compared shape; or why it does not fit."""
        shape, packed = self.sizes.shape(name) if name == LSE else self.expected(name).X.shape, self.layout == "THD"
        if name == LSE:
            B, H, Q, _ = shape
            if X.shape == (B, H, Q)[packed:]:
                return lambda X: X.reshape(shape)  # (B, H, Q, 1)
            if X.shape == (B, Q, H)[packed:] and not packed:
                return lambda X: X.swapaxes(1, 2)[..., None]  # (B, H, Q, 1)
            return f"it has shape {X.shape}, expected {(B, H, Q)[packed:]}: {'(batch, ' * (not packed)}heads, queries)"
        heads, (B, T, width) = self.numbers[name in BY_KEYS], shape
        axes = {"B": B, "H": heads, "T": T, "D": width // heads}
        expected = tuple(axes[letter] for letter in self.layout)
        if X.shape != expected:
            return f"it has shape {X.shape}, expected {expected}, in the layout {self.layout}"
        return lambda X: merge(heads_first(name, X, self.layout))

    @functools.cached_property
    def texts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the text of each query, (B, Q), and of each key, (B, K), as numbers from 0 on."""
        sizes, call = self.sizes, self.call
        if call.segments is None:
            samples = np.arange(sizes.B)[:, None]
            return np.repeat(samples, sizes.Q, 1), np.repeat(samples, sizes.K, 1)
        return tuple(np.asarray(X).reshape(1, -1) for X in call.segment_ids().values())  # type: ignore[return-value]

    def by_heads(self, name: str, X: np.ndarray) -> np.ndarray:
        """Split an array in its compared shape into heads: (B, T, H*d) -> (B, H, T, d); the log-sum-exp is split."""
        return X if name == LSE else split(X, self.numbers[name in BY_KEYS])

    def matters(self, name: str) -> np.ndarray:
        """Return which numbers of an array count; the log-sum-exp of a row without keys is not defined beside sinks."""
        if name != LSE:
            return super().matters(name)
        rows = self.rows_that_count[:, None, :, None]  # (B, 1, Q, 1)
        return rows & self.visible.any(3, keepdims=True) if "sinks" in self.layer.weights else rows

    @functools.cached_property
    def half(self) -> Any:
        """Return the rule for an output in half precision, None in others, and without queries or keys."""
        if UNIT[self.config.dtype] < UNIT["float16"] or not self.queries.size * self.keys.size:
            return None
        from mha.parity.rule.half_precision import HalfPrecision  # which other precisions do without
        from mha.parity.rule.simulation import KernelSimulation

        simulation, H = KernelSimulation(self.layer, *self._heads("float32")), self.config.num_heads
        return HalfPrecision(simulation, self.oracle["output"], self.rows_that_count, self.style, H)

    @functools.cached_property
    def sizes_of_heads(self) -> tuple[np.ndarray, ...]:
        """Return the magnitudes of queries, keys and values of each head of queries, (B, H, T, d), and of weights.

        Those of weights, (B, H, Q, K), have that of the rounding of scores in them; last are those of products.
        """
        times = self.numbers[0] // self.numbers[1]
        given = zip((self.queries, self.keys, self.values), self.numbers, strict=True)
        q, k, v = (np.abs(finite(split(X.astype(np.float64), n))) for X, n in given)  # (B, H or G, T, d)
        k, v = (np.repeat(X, times, 1) for X in (k, v))  # (B, H, K, d)
        products = np.where(self.visible, scale_of(self.config) * (q @ k.swapaxes(2, 3)), 0)  # (B, H, Q, K)
        weights = finite(self.oracle["weights"]) * (1 + OF_SCORES * products)  # (B, H, Q, K)
        return q, k, v, weights, products

    def terms(self, name: str) -> np.ndarray:
        """Return the magnitude of the terms of which each number of an array is a sum, before they cancel, by heads."""
        (q, k, v, weights, products), scale = self.sizes_of_heads, scale_of(self.config)
        if name == "output":
            return np.asarray(weights @ v)  # (B, H, Q, dv)
        if name == LSE:
            return np.maximum(products.max(-1, initial=1, keepdims=True), np.abs(finite(self.oracle[LSE])))
        by_pooled = np.abs(finite(split(self._cotangent("float64"), self.config.num_heads)))  # (B, H, Q, dv)
        if name == GRADIENT + "values":
            return unshare(weights.swapaxes(2, 3) @ by_pooled, self.numbers[1])  # (B, G, K, dv)
        by_weights = by_pooled @ v.swapaxes(2, 3)  # (B, H, Q, K)
        by_scores = scale * weights * (by_weights + (weights * by_weights).sum(-1, keepdims=True))  # (B, H, Q, K)
        return unshare(by_scores.swapaxes(2, 3) @ q, self.numbers[1]) if name == GRADIENT + "keys" else by_scores @ k

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Return the number of heads of queries, keys and values."""
        return self.config.num_heads, self.config.num_key_value_heads, self.config.num_key_value_heads

    def limits(self, name: str, oracle: np.ndarray, base: np.ndarray) -> np.ndarray:
        """Return how far each number of an array may be, in its shape: as far as the worst of its text and head.

        That is the rule of `rules.bound`, where the magnitude is that of the terms before they cancel.
        """
        dtype, gradient = self.config.dtype, name.startswith(GRADIENT)
        far, size = (np.abs(finite(self.by_heads(name, X))) for X in (base - oracle, oracle))
        size = np.maximum(size, self.terms(name))
        if dtype == "float64":
            each = (1e-10 if gradient else 1e-12) * size
        else:
            # Kernels keep sums in float32, so that of the log-sum-exp little more than its scores is rounded.
            units = IN_HALF if name == LSE and "16" in dtype else 16 * max(1.0, (self.summed(name) / FEW) ** 0.5)
            each = (16 if gradient else 8) * far + units * UNIT[dtype] * size
        texts = self.texts[name in BY_KEYS]  # (B, T)
        rows = each.max(3, initial=0)  # (B, H, T)
        worst = np.zeros((rows.shape[1], texts.max(initial=-1) + 1))  # (H, texts)
        indices: Any = slice(None), texts
        np.maximum.at(worst, indices, rows.swapaxes(0, 1))
        found = worst[:, texts].swapaxes(0, 1)  # (B, H, T)
        found = np.broadcast_to(found[..., None], each.shape)
        return found if name == LSE else merge(found)

    def summed(self, name: str) -> int:
        """Return how many terms each number is a sum of: in float32 one after the other, their rounding adds up."""
        if "16" in self.config.dtype:
            return 1
        H, G, _ = self.numbers
        return self.sizes.Q * H // G if name in BY_KEYS else self.sizes.K

    def _expect(self, name: str) -> Expected:
        with np.errstate(invalid="ignore"):
            if name.startswith(GRADIENT):
                return super()._expect(name)
            oracle, base = (self.blank_unused(name, X[name]) for X in (self.oracle, self.base))
            found = self.within(self.limits(name, oracle, base), oracle)
        if name != "output":
            return found
        return found._replace(rows=row_bounds(self.config.dtype, oracle, base), half=self.half)

    def expected_gradient(self, name: str, oracle: np.ndarray, base: np.ndarray, scale: float) -> Expected:
        """Return the expected gradient, and its bounds; scale: of no use here, where each sum has its terms."""
        return self.within(self.limits(GRADIENT + name, oracle, base), oracle)

    @staticmethod
    def within(limits: np.ndarray, oracle: np.ndarray) -> Expected:
        """Expect an oracle, each number within its own limit."""
        limit = float(limits.max(initial=0))
        return Expected(oracle, limit, shares=np.maximum(limits / limit, LEAST) if limit else None)

    def _arguments(self, dtype: FloatName) -> tuple[Any, ...]:
        kind, wide = numpy_dtype(dtype), at_least_float32(dtype)
        call = self.call._replace(**{name: X.astype(wide) for name, X in self.call.differentiable().items()})
        return *(X.astype(kind) for X in (self.queries, self.keys, self.values)), call

    def _heads(self, dtype: FloatName) -> tuple[Any, ...]:
        """Return queries (B*H, Q, d), keys (B*G, K, d), values (B*G, K, dv) and the call, in a dtype."""
        *inputs, call = self._arguments(dtype)
        return *(flat(X, n) for X, n in zip(inputs, self.numbers, strict=True)), call

    def _cotangent(self, dtype: FloatName) -> np.ndarray:
        """Return the gradient of the loss by the output, (B, Q, H*dv)."""
        shape = *self.queries.shape[:2], self.config.num_hiddens
        return np.ones(shape, numpy_dtype(dtype)) if self.cotangent is None else self.cotangent.astype(dtype)

    def _steps(self, layer: Any) -> Named:
        config, sizes, (*heads, call) = layer.config, self.sizes, self._heads(layer.config.dtype)
        with dispatch.load("numpy").context(config.dtype), record_steps() as steps, np.errstate(all="ignore"):
            pooled, _ = layer.layer.pool(*heads, call)  # (B*H, Q, dv)
        found = {name: X.reshape(sizes.shape(name)) for name, X in steps.items()}  # (B, H, Q, K)
        last = next(X for name, X in reversed(found.items()) if name != "weights")
        found[LSE] = log_sum_exp(last, self.visible, layer.weights.get("sinks"))
        found |= {
            f"split_{role}": X.reshape(sizes.shape(f"split_{role}")) for role, X in zip("qkv", heads, strict=True)
        }
        found["pooled"] = pooled.reshape(sizes.shape("pooled"))  # (B, H, Q, dv)
        return found | {"output": merge(found["pooled"])}

    def _gradients(self, layer: Any) -> Named:
        config, (*heads, call) = layer.config, self._heads(layer.config.dtype)
        by_pooled = flat(self._cotangent(config.dtype), config.num_heads)  # (B*H, Q, dv)
        given = layer.layer.attention, *heads, config.num_heads, layer.layer.beside_sinks(call), by_pooled
        with dispatch.load("numpy").context(config.dtype), np.errstate(all="ignore"):
            found = dispatch.lesson("numpy").through_pooling(*given)[:3]  # (B*H, Q, d), (B*G, K, d), (B*G, K, dv)
        by_name = zip(OF_INPUTS, found, self.numbers, strict=True)
        return {name: merge(by_samples(X, n)) for name, X, n in by_name}  # (B, T, H*d)
