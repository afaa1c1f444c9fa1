"""Weights of a layer as NumPy arrays, the same on every backend: drawn, saved, and read from safetensors files.

A layer's weights are a flat dict of canonical arrays: kernels (in, out), applied as `x @ kernel + bias`. Columns of
W_q, W_k and W_v and rows of W_o are head-major: head 0 first. `shapes` in
`mha/core/options/config.py` has their names and shapes.
"""

from typing import TYPE_CHECKING

from mha.core import lazy

if TYPE_CHECKING:
    from mha.weights.canonical import initial
    from mha.weights.checkpoints import choose, load, take, unread_error
    from mha.weights.files import FileError
    from mha.weights.own_format import is_own, save
    from mha.weights.schemes import SCHEMES
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = ["SCHEMES", "FileError", "choose", "initial", "is_own", "load", "save", "take", "unread_error"]
