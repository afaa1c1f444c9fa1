"""The names of the next edition of *Dive into Deep Learning*: `from mha.d2l.next import torch as d2l` (or jax).

They are those that its chapter "Attention" uses, with its argument orders. `mha.d2l` has the names of the editions
before.
"""

from typing import Any

from mha.learn.d2l.common import missing

SECTION, FILES = "a section of the next edition", "learn/d2l/next/*.py"


def __getattr__(name: str) -> Any:
    raise missing("mha.d2l.next", SECTION, FILES, name)
