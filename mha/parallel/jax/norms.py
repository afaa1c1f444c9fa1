"""Norms over all heads, of a layer of JAX whose heads are split over devices: all devices take the means together.

Letters as in the chapters; H and G are the heads on this device.
"""

import functools

import jax

from mha.parallel.parts import NORMS, over_all

from .twins import twin_of


def over(part, heads, of_pairs):
    """A layer of the heads on each device, for one call inside `jax.shard_map`, with the means of all devices.

    heads: the axis of the mesh that the heads are split over; of_pairs: the axes over which their pooling is split.
    Its call has the masks and biases of all heads, since these decide which rows count in a mean.
    """
    return twin_of(part, OverDevices, heads=heads, of_pairs=of_pairs)


class OverDevices:
    """A layer with norms over the heads of all devices; it comes before the layer's own class in the bases."""

    def setup(self):
        super().setup()
        for name in over_all(self.config):
            for norm in NORMS[name]:
                # A module that has its name is frozen, and another one cannot have the same.
                object.__setattr__(getattr(self, norm), "mean", functools.partial(_mean, self.heads))

    def project(self, queries, keys, values, call):
        """Project as the layer's own class does; the call returned has the masks and biases of the heads here."""
        *heads, call = super().project(queries, keys, values, call)
        return *heads, call._replace(**{name: _of_here(self.of_pairs, X) for name, X in call.pairs().items()})


def _of_here(axes, pairs):
    """Cut pairs (B, all heads, Q, K) to the heads that are pooled here, (B, H, Q, K); others stay as they are."""
    if pairs.ndim < 4 or pairs.shape[1] == 1:
        return pairs
    size = pairs.shape[1] // jax.lax.axis_size(axes)
    return jax.lax.dynamic_slice_in_dim(pairs, jax.lax.axis_index(axes) * size, size, 1)  # (B, H, Q, K)


def _mean(axis, X):
    """The mean of each row of X (B, T, H*d) over all devices of an axis, (B, T, 1); heads have equally many copies."""
    return jax.lax.pmean(X.mean(-1, keepdims=True), axis)  # (B, T, 1)
