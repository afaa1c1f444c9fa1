"""The names of *Dive into Deep Learning*, a module per framework: `from mha.d2l import torch as d2l` (or mxnet, ...).

Code printed in the book runs unchanged, in the argument orders of both editions, by the conventions that the book has
for each framework. Only what `mha` promises everywhere differs: a query that may see no key gets weights 0, and padding
never matters.
"""
