"""The names of the next edition of Dive into Deep Learning in PyTorch: `from mha.d2l.next import torch as d2l`."""

from mha.arrays import check_shape, masked_softmax  # noqa: F401
from mha.core import dispatch
from mha.learn.d2l.common import show_heatmaps  # noqa: F401
from mha.learn.d2l.next.names import __getattr__, add_to_class, plot  # noqa: F401

dispatch.load("torch")  # if the framework is missing, this says how to install it

from mha.learn.d2l.next.frameworks.torch import *  # noqa: E402, F403
