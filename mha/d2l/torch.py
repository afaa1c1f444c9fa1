"""The names of Dive into Deep Learning in PyTorch: `from mha.d2l import torch as d2l`."""

from mha import dispatch

dispatch.load("torch")  # if the framework is missing, this says how to install it

from mha.backends.torch.book import *  # noqa: E402, F403
