"""The names of Dive into Deep Learning in TensorFlow: `from mha.d2l import tensorflow as d2l`."""

from mha.arrays import check_shape, masked_softmax, transpose_output, transpose_qkv  # noqa: F401
from mha.core import dispatch
from mha.learn.d2l.common import show_heatmaps  # noqa: F401

dispatch.load("tensorflow")  # if the framework is missing, this says how to install it

from mha.learn.d2l.frameworks.tensorflow import *  # noqa: E402, F403
