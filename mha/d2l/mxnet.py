"""The names of Dive into Deep Learning in MXNet: `from mha.d2l import mxnet as d2l`."""

from mha import dispatch

dispatch.load("mxnet")  # if the framework is missing, this says how to install it

from mha.backends.mxnet.book import *  # noqa: E402, F403
