"""The names of Dive into Deep Learning in JAX, with Flax's linen modules: `from mha.d2l import jax as d2l`."""

from mha.arrays import check_shape, masked_softmax, transpose_output, transpose_qkv  # noqa: F401
from mha.core import dispatch
from mha.learn.d2l.common import show_heatmaps  # noqa: F401

dispatch.load("jax")  # if the framework is missing, this says how to install it

from mha.learn.d2l.frameworks.jax import *  # noqa: E402, F403
