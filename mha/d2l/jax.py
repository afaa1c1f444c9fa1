"""The names of Dive into Deep Learning in JAX, with Flax's linen modules: `from mha.d2l import jax as d2l`."""

from mha import dispatch

dispatch.load("jax")  # if the framework is missing, this says how to install it

from mha.backends.jax.book import *  # noqa: E402, F403
