"""The rule of half precision for a kernel: styles of attention alone, where each head of a sample is a sample.

Letters as in the lessons.
"""

from typing import Any, NamedTuple

import numpy as np

from mha.parity.rule.half_precision import HalfPrecision, Rounding
from mha.parity.rule.heads import by_samples, flat, merge
from mha.parity.rule.rounding import cut_off
from mha.parity.rule.simulation import Array, Chunk, Heads, Rows, Simulation
from mha.parity.rule.styles import Border, Core


class KernelSimulation(Simulation):
    """A call of a kernel in many styles; its outputs are heads, (B*H, Q, dv)."""

    def lesson_of(self, attention: Any) -> Any:
        """Return the lesson's layer that pools in float32."""
        return attention.in_dtype("float32").layer

    def heads(self, border: Border) -> Heads:
        """Return the heads that the kernel gets, and its call."""
        numbers = self.config.num_heads, *[self.config.num_key_value_heads] * 2
        q, k, v = (flat(X, n) for X, n in zip(self.inputs, numbers, strict=True))
        return Heads(q, k, v, self.scale, self.round, cut_off if border.cut else self.round, self.call)

    def project_pooled(self, border: Border, core: Core, rows: Rows) -> Array:
        """Return the output (B*H, Q, dv) of a style; rows: those queries alone."""
        return self.round(self.pool(self.once("heads", self.heads, border), lambda chunk: chunk.pool(core), rows))

    def change_of_scale(self, border: Border) -> Array:
        """Return the change of the output (B*H, Q, dv) with the logarithm of the scale."""
        return self.pool(self.once("heads", self.heads, border), Chunk.change_of_scale)

    def largest_scores(self, border: Border) -> Array:
        """Return the largest magnitude among the scores that each query sees, (B*H, Q)."""
        return np.asarray(self.pool(self.once("heads", self.heads, border), Chunk.largest).max(-1))


class KernelPrecision(NamedTuple):
    """The rule for one call of a kernel, whose outputs are heads side by side, (B, Q, H*dv)."""

    rule: HalfPrecision
    num_heads: int

    @classmethod
    def of(cls, asked: Any) -> "KernelPrecision":
        """Make the rule for a call in half precision."""
        H = asked.config.num_heads
        simulation = KernelSimulation(asked.layer, *asked._arguments("float32"))
        counts = np.repeat(asked.rows_that_count, H, 0)  # (B*H, Q)
        return cls(HalfPrecision(simulation, flat(asked.oracle["output"], H), counts, asked.style), H)

    @property
    def has_ties(self) -> bool:
        """Return whether any query has ties by rounding."""
        return self.rule.has_ties

    def judge(self, theirs: Array) -> Rounding:
        """Judge an output (B, Q, H*dv), finite where the oracle is."""
        found = self.rule.judge(flat(theirs, self.num_heads))
        return found._replace(rows=np.asarray(by_samples(found.rows, self.num_heads).any(1)))  # (B, Q)

    def ratio_of_change(self, change: Array) -> float:
        """Return the ratio of right code whose output is changed by so much, (B, Q, H*dv)."""
        return self.rule.ratio_of_change(flat(change, self.num_heads))

    def error_of(self, rounding: Rounding) -> Array:
        """Return the error of a style, (B, Q, H*dv), 0 in rows that do not count."""
        return merge(by_samples(self.rule.error_of(rounding), self.num_heads))
