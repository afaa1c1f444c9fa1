"""The names of *Dive into Deep Learning*, a module per framework: `from mha.d2l import torch as d2l` (or mxnet, ...).

Code printed in the book runs unchanged, with the argument orders of both editions and with the book's conventions for
each framework. Three things differ, as `mha` promises them everywhere: a query that sees no key gets weights 0, padding
never matters, and wrong arguments raise.
"""

from typing import Any

from mha.learn.d2l.common import missing


def __getattr__(name: str) -> Any:
    raise missing("mha.d2l", "a section of the book", "learn/d2l/*.py", name)
