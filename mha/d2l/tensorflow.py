"""The names of Dive into Deep Learning in TensorFlow: `from mha.d2l import tensorflow as d2l`."""

from mha import dispatch

dispatch.load("tensorflow")  # if the framework is missing, this says how to install it

from mha.backends.tensorflow.book import *  # noqa: E402, F403
