"""The names of *Dive into Deep Learning*, a module per framework: `from mha.d2l import torch as d2l` (or mxnet, ...).

Code printed in the book runs unchanged, with the argument orders of both editions and with the book's conventions for
each framework. Three things differ, as `mha` promises them everywhere: a query that sees no key gets weights 0, padding
never matters, and wrong arguments raise.
"""
