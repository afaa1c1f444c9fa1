"""The names of *Dive into Deep Learning*, a module per framework: `from mha.d2l import torch as d2l` (or mxnet, ...).

Code printed in the book runs unchanged, with the argument orders of both editions and with the book's conventions for
each framework. Three things differ, as `mha` promises them everywhere: a query that sees no key gets weights 0, padding
never matters, and wrong arguments raise.
"""

from typing import Any

from mha import dispatch


def __getattr__(name: str) -> Any:
    why = dispatch.FRAMEWORKS[name].lacks.get("commands/book.py") if name in dispatch.FRAMEWORKS else None
    if why is None:
        raise AttributeError(f"module 'mha.d2l' has no attribute {name!r}")
    raise ImportError(f"mha.d2l has no {name}: {why}; it has {', '.join(dispatch.having('commands/book.py'))}")
