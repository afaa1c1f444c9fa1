"""Outputs of right code in half precision, simulated: float32 arithmetic in NumPy, rounded where a style rounds.

Letters as in the lessons.
"""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mha.core import dispatch
from mha.core.options.positions import Rotary
from mha.layer import MultiHeadAttention
from mha.parity.rule.heads import scale_of
from mha.parity.rule.rounding import (
    as_it_is,
    by_chance,
    coarse,
    cut_off,
    one_by_one,
    product_one_by_one,
    shares_of,
    through,
)
from mha.parity.rule.styles import PLAIN, Border, Core

Array = np.ndarray
Rows = tuple[int, ...] | None  # some queries; None = all
LOG2E = np.float32(math.log2(math.e))
PAIRS = 2**21  # of queries and keys that are in memory at a time
PROJECTIONS = "W_q", "W_k", "W_v", "W_o", "W_g"


class Heads(NamedTuple):
    """The heads that attention gets, in float32, and the call that is left to do."""

    q: Array  # (B*H, Q, d)
    k: Array  # (B*G, T, d)
    v: Array  # (B*G, T, dv)
    scale: Any  # that is left to apply
    half: Any  # the function that rounds
    product: Any  # the function that rounds products of matrices
    call: Any


class Simulation:
    """One call in many styles; what several of them share is computed once.

    attention: the layer in half precision. queries, keys, values, call: in float32, checked.
    """

    def __init__(self, attention: MultiHeadAttention, queries: Array, keys: Array, values: Array, call: Any) -> None:
        self.dtype, self.lesson = attention.config.dtype, dispatch.lesson("numpy")
        self.inputs, self.call, self.round = (queries, keys, values), call, through(self.dtype)
        self.config = dataclasses.replace(attention.config, dtype="float32")
        self.layer = self.lesson_of(attention)
        self.scale = np.float32(scale_of(self.config))
        self.known: dict[Any, Any] = {}

    def drawn(self, seed: int) -> "Simulation":
        """Return a simulation of the same call that rounds by chance: its errors are of the usual size, but others."""
        made = copy.copy(self)
        made.round, made.known = by_chance(self.dtype, np.random.default_rng(seed)), {}
        return made

    def lesson_of(self, attention: Any) -> Any:
        """Return the lesson's layer in float32."""
        weights = {name: X.astype(np.float32) for name, X in attention.weights.items()}
        return self.lesson.build(self.config, weights, 0, self.lesson.MultiHeadAttention)

    @np.errstate(all="ignore")
    def output(self, border: Border, core: Core, rows: Rows = None) -> Array:
        """Return the output (B, Q, D) of a style, in float32; rows: those queries alone, None = all."""
        return self.once("output", self.project_pooled, border, core, rows)

    @np.errstate(all="ignore")
    def change_of_scale(self, border: Border) -> Array | None:
        """Return the change of the output (B, Q, D) with the logarithm of the scale; None if there is no scale."""
        if self.config.pooling != "dot":
            return None
        heads = self.once("heads", self.heads, border)
        merged = self.close(self.pool(heads, Chunk.change_of_scale), heads.call.plan.gates, as_it_is)
        return np.asarray(merged @ self.layer.W_o.kernel)

    @np.errstate(all="ignore")
    def largest_scores(self, border: Border) -> Array:
        """Return the largest magnitude among the scores that each query sees, (B, Q)."""
        found = self.pool(self.once("heads", self.heads, border), Chunk.largest).max(-1)  # (B*H, Q)
        return np.asarray(found.reshape(len(self.inputs[0]), -1, found.shape[1]).max(1))  # (B, Q)

    @property
    def num_keys(self) -> int:
        """Return the number of keys, with those of a cache."""
        return int(self.once("heads", self.heads, Border.usual(self.config)).k.shape[1])

    def once(self, name: str, make: Callable[..., Any], *key: Any) -> Any:
        """Return make(*key), which is computed once."""
        if (name, *key) not in self.known:
            self.known[name, *key] = make(*key)
        return self.known[name, *key]

    def project_pooled(self, border: Border, core: Core, rows: Rows) -> Array:
        """Return the output (B, Q, D) of a style; rows: those queries alone."""
        heads = self.once("heads", self.heads, dataclasses.replace(border, last=False, gates=False))
        half = self.rounding_of(border)
        pooled = half(self.pool(heads, lambda chunk: chunk.pool(core), rows))  # (B*H, Q, dv)
        gates = heads.call.plan.gates  # (B*H, Q, dv or 1), or None
        gates = gates if rows is None or gates is None else gates[:, rows]
        merged = self.close(pooled, gates, half, self.round if border.gates else as_it_is)
        return self.round(self.project(self.layer.W_o, border, border.last, as_it_is, 1.0, merged))

    # The border

    def rounding_of(self, border: Border) -> Callable[[Array], Array]:
        """Return the function that rounds where a border does."""
        return self.round if border.rounds else as_it_is

    def heads(self, border: Border) -> Heads:
        """Return the heads that attention gets, and the call that is left."""
        layer, half = copy.copy(self.layer), self.rounding_of(border)
        for name in PROJECTIONS:
            if dense := getattr(layer, name, None):
                scale = self.scale if border.scaled and name == "W_q" else np.float32(1)
                setattr(layer, name, functools.partial(self.project, dense, border, border.products, half, scale))
        for name in ("q_norm", "k_norm", "v_norm"):
            if own := getattr(layer, name, None):
                setattr(layer, name, self.norm(own, border.norms, half))
        q, k, v, call = layer.project(*self.inputs, self.call)
        v = layer.v_norm(v) if self.config.value_norm else v
        q, k = self.transform_heads(layer, border, q, k, call)
        if call.cache is not None:
            k, v, call, _ = layer.remember(k, v, call)
        return Heads(
            q, k, v, np.float32(1) if border.scaled else self.scale, half, cut_off if border.cut else self.round, call
        )

    def project(self, dense: Any, border: Border, products: bool, half: Any, scale: Any, X: Array) -> Array:
        """Project X (..., in) to (..., out); rounded after the bias and the scale; and before, if products are."""
        X = cut_off(X @ dense.kernel) if border.cut else X @ dense.kernel  # (..., out)
        if dense.bias is not None:
            X = (self.round(X) if products else X) + dense.bias
        return np.asarray(half(X * scale))

    def norm(self, own: Any, norms: bool, half: Any) -> Callable[[Array], Array]:
        """Return a norm of heads that rounds its result, and before its scale if norms are rounded."""
        inner = copy.copy(own)
        if norms:
            inner.normalize = lambda X: (self.round(own.normalize(X)[0]), None)
        return lambda X: half(inner(X))

    def transform_heads(self, layer: Any, border: Border, q: Array, k: Array, call: Any) -> tuple[Array, Array]:
        """Norm, rotate and temper heads, as the lesson does, but rounded."""
        config, half = self.config, self.rounding_of(border)
        places, H, G = self.lesson.places, config.num_heads, config.num_key_value_heads
        if config.qk_norm and not config.qk_norm.after:
            q, k = layer.norm_heads(q, k)
        if config.rotary:
            q = half(self.rotate(q, places(q, call.positions, call.offset), config.rotary, border, H))
            k = half(self.rotate(k, places(k, call.key_positions), config.rotary, border, G))
        if config.qk_norm and config.qk_norm.after:
            q, k = layer.norm_heads(q, k)
        if config.temperature:
            given = places(q, call.positions, call.offset), config.temperature, H
            q = half(self.lesson.temper(q, *given))
        return q, k

    def rotate(self, X: Array, places: Array, rotary: Rotary, border: Border, num_heads: int) -> Array:
        """Rotate heads X (B*H, T, d), as the lesson does; cosines, sines and products may be rounded."""
        rotary = coarse(rotary) if border.angles else rotary
        (BH, T, d), n = X.shape, (rotary.dim or X.shape[2]) // 2
        cos, sin = (part[:, None] for part in self.lesson.turns(places, rotary, np.float32))  # (B or 1, 1, T, n)
        if border.cosines:
            cos, sin = self.round(cos), self.round(sin)
        turned, half = X.reshape(BH // num_heads, num_heads, T, d).copy(), self.round if border.turns else as_it_is
        first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if rotary.interleaved else (slice(n), slice(n, 2 * n))
        a, b = turned[..., first].copy(), turned[..., second].copy()  # (B, H, T, n)
        turned[..., first], turned[..., second] = half(a * cos) - half(b * sin), half(b * cos) + half(a * sin)
        return turned.reshape(BH, T, d)  # (B*H, T, d)

    def close(self, pooled: Array, gates: Any, half: Any, sigmoid: Any = as_it_is) -> Array:
        """Return what W_o projects, (B, Q, H*dv): pooled heads (B*H, Q, dv) times their gates."""
        if self.call.head_gates is not None:
            pooled = half(self.lesson.gate(pooled, self.call.head_gates, self.config.num_heads))
        if gates is not None:
            sees = (pooled != 0).any(-1, keepdims=True)  # (B*H, Q, 1)
            pooled = half(pooled * np.where(sees, sigmoid(self.lesson.sigmoid(gates)), 0))
        return np.asarray(self.layer.merge(pooled))

    # The core

    def pool(self, heads: Heads, take: Callable[["Chunk"], Array], rows: Rows = None) -> Array:
        """Return what a function takes of all chunks, (B*H, Q, any); rows: those queries alone."""
        lesson, H, (BH, Q, _), K = self.lesson, self.config.num_heads, heads.q.shape, heads.k.shape[1]
        times, call = H // self.config.num_key_value_heads, self.layer.beside_sinks(heads.call)
        pairs = (lesson.visible_keys(heads.q, heads.k, call), K), (call.score_bias, K), (call.plan.sinks, 1)
        visible, bias, sinks = (
            None if X is None else np.broadcast_to(lesson.four_axes(X), (BH // H, H, Q, width)) for X, width in pairs
        )  # (B, H, Q, K or 1)
        chosen, found = np.arange(Q) if rows is None else np.array(rows), []
        steps = range(0, max(len(chosen), 1), max(1, PAIRS // max(K, 1)))
        for one in range(BH):
            (sample, head), group = divmod(one, H), one // times
            for own in (chosen[first : first + steps.step] for first in steps):
                seen, added, sink = (None if X is None else X[sample, head, own] for X in (visible, bias, sinks))
                given = (X[None] for X in (heads.q[one, own], heads.k[group], heads.v[group]))
                q, k, v = (X[0] for X in lesson.zero_unused(*given, None if seen is None else seen[None]))
                found.append(take(Chunk(self, q, k, v, heads, seen, added, sink)))
        return np.concatenate(found).reshape(BH, len(chosen), -1)  # (B*H, Q, any)


class KernelSimulation(Simulation):
    """A call of a kernel in many styles; its inputs and outputs are heads, (B*H, Q, d) and (B*H, Q, dv)."""

    def lesson_of(self, attention: Any) -> Any:
        """Return the lesson's layer that pools in float32."""
        return attention.in_dtype("float32").layer

    def heads(self, border: Border) -> Heads:
        """Return the heads that the kernel gets, and its call."""
        return Heads(*self.inputs, self.scale, self.round, cut_off if border.cut else self.round, self.call)

    def project_pooled(self, border: Border, core: Core, rows: Rows) -> Array:
        """Return the output (B*H, Q, dv) of a style; rows: those queries alone."""
        return self.round(self.pool(self.once("heads", self.heads, border), lambda chunk: chunk.pool(core), rows))

    def change_of_scale(self, border: Border) -> Array:
        """Return the change of the output (B*H, Q, dv) with the logarithm of the scale."""
        return self.pool(self.once("heads", self.heads, border), Chunk.change_of_scale)


class Chunk:
    """Some queries of one head: q (Q, d), k (K, d), v (K, dv); seen, bias (Q, K) and sink (Q, 1), or None."""

    def __init__(
        self, simulation: Simulation, q: Array, k: Array, v: Array, heads: Heads, seen: Any, bias: Any, sink: Any
    ) -> None:
        self.dtype, self.round = simulation.dtype, simulation.round
        self.pooling, self.q, self.k, self.v, self.scale = simulation.layer.attention, q, k, v, heads.scale
        self.seen, self.bias, self.sink, self.half, self.product = seen, bias, sink, heads.half, heads.product

    def pool(self, core: Core) -> Array:
        """Return the pooled values of a style, (Q, dv)."""
        (scores, sink), half = self.shifted(core), self.round
        if core.in_half:
            weights = self.softmax_in_half(core, *(half(np.exp(half(X))) for X in (scores, sink)))
        elif core.softmax == "flash":
            return np.asarray(self.tiles(scores, core.tile) @ self.v / total(np.exp(scores), np.exp(sink)))
        else:
            weights = softmax(scores, sink)
        weights = half(weights) if core.weights else weights
        if core.sums:
            return product_one_by_one(weights, self.v)
        return np.asarray(self.product(weights @ self.v) if core.weights else weights @ self.v)

    def shifted(self, core: Core) -> tuple[Array, Array]:
        """Return scores (Q, K) and the sink (Q, 1), less their largest; a sink that is not there is minus infinity."""
        scores = self.bent(core)
        largest = scores.max(-1, keepdims=True, initial=np.finfo(np.float32).min)
        if self.sink is None:
            return scores - largest, np.full_like(largest, -math.inf)
        largest = np.maximum(largest, self.sink)
        return scores - largest, self.sink - largest

    def bent(self, core: Core) -> Array:
        """Return the scores as the softmax takes them, (Q, K): capped, biased, and minus infinity where hidden."""
        scores, cap = self.scores(core), self.pooling.softcap
        half = self.round if core.scores and not core.at_once else as_it_is
        if cap is not None:
            cap = self.round(np.full(1, cap, np.float32)) if core.coarse else np.float32(cap)
            scores = half(cap * half(np.tanh(half(scores / cap))))
        if self.bias is not None:
            scores = half(scores + self.bias)
        scores = self.round(scores) if core.at_once else scores
        return scores if self.seen is None else np.where(self.seen, scores, np.float32(-math.inf))

    def scores(self, core: Core) -> Array:
        """Return the scaled scores of a style, (Q, K)."""
        half, rounds = self.round, core.scores and not core.at_once
        if not hasattr(self.pooling, "scale"):
            return self.additive_scores()
        base = LOG2E if core.base_2 else np.float32(1)
        scale = self.scale * base
        scale = half(scale[None]) if core.coarse and core.scale != "queries, root" else scale
        if core.scale == "both":
            found = half(self.q * np.sqrt(scale)) @ half(self.k * np.sqrt(scale)).T
        elif core.scale.startswith("queries"):
            root = core.scale.endswith("root")
            found = half(self.q / half(1 / scale[None]) if root else self.q * scale) @ self.k.T / base
        else:
            found = product_one_by_one(self.q, self.k.T) if core.sums else self.q @ self.k.T
            found = (self.product(found) if core.dots else found) * scale
        return np.asarray(half(found) if rounds else found)

    def additive_scores(self) -> Array:
        """Return the scores of additive attention, (Q, K)."""
        half = self.half
        q, k = half(self.q @ self.pooling.W_q.kernel), half(self.k @ self.pooling.W_k.kernel)  # (Q, n), (K, n)
        features = half(np.tanh(half(q[:, None] + k[None])))  # (Q, K, n)
        return np.asarray(half((features @ self.pooling.w_v.kernel)[..., 0]))  # (Q, K)

    def softmax_in_half(self, core: Core, shares: Array, sink: Array) -> Array:
        """Return the weights (Q, K) of rounded exponentials, (Q, K), and that of the sink, (Q, 1)."""
        sums = total(shares, sink)
        if core.softmax == "one by one":
            sums = one_by_one(self.dtype, np.concatenate([shares, sink], 1).T)[:, None]  # (Q, 1), in the keys' order
        return shares_of(self.round, shares, sums, inverse=core.softmax != "half")

    def tiles(self, scores: Array, tile: int) -> Array:
        """Return the exponentials, (Q, K), each rounded relative to the largest score of its tile and those before."""
        K, found, largest = scores.shape[1], [], np.float32(-math.inf)
        if tile in (0, K) or tile > K:
            return self.round(np.exp(scores))
        for first in range(0, K, tile):
            own = scores[:, first : first + tile]
            largest = np.maximum(largest, own.max(-1, keepdims=True))  # (Q, 1)
            shift = np.where(np.isneginf(largest), np.float32(0), largest)
            found.append(self.round(np.exp(own - shift)) * np.exp(shift))
        return np.concatenate(found, 1)

    def largest(self) -> Array:
        """Return the largest magnitude of the scores that each query sees, (Q, 1)."""
        scores = np.abs(self.bent(PLAIN))
        return np.where(np.isfinite(scores), scores, 0).max(-1, keepdims=True, initial=0)

    def change_of_scale(self) -> Array:
        """Return the change of the pooled values with the logarithm of the scale, (Q, dv)."""
        cap, by_scale = self.pooling.softcap, self.scores(PLAIN)
        if cap is not None:
            by_scale = by_scale / np.cosh(by_scale / np.float32(cap)) ** 2
        weights = softmax(*self.shifted(PLAIN))
        by_scale = np.where(weights > 0, by_scale, np.float32(0))
        return np.asarray(weights * (by_scale - (weights * by_scale).sum(-1, keepdims=True)) @ self.v)


def softmax(scores: Array, sink: Array) -> Array:
    """Return the softmax of scores (Q, K) beside a sink (Q, 1), both less the largest; 0 where nothing is visible."""
    shares = np.exp(scores)
    return shares / total(shares, np.exp(sink))


def total(shares: Array, sink: Any) -> Array:
    """Return the sums of exponentials (Q, K) and of the sink's, (Q, 1); 1 where nothing is visible."""
    sums = shares.sum(-1, keepdims=True) + sink
    return np.where(sums == 0, np.float32(1), sums)
