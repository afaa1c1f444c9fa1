"""One multi-head attention on several backends, with the same numbers on each.

The backend is chosen by the argument `backend`, else by the environment variable MHA_BACKEND, else it is "numpy". Read
`help(mha.MultiHeadAttention)` next, or `mha --help` on the command line.

PYTEST_DONT_REWRITE: without this word, pytest warns if `mha`, which brings a plugin, was imported before pytest.
"""

import os.path
from typing import TYPE_CHECKING

# In a source distribution, and in a checkout on Windows without symbolic links, `backends` is beside `mha`.
if not os.path.isdir(os.path.join(os.path.dirname(__file__), "backends")):
    __path__.append(os.path.dirname(os.path.dirname(__file__)))

from mha.core import import_mxnet, lazy

# `mha.backends` is a package that can be called; a type checker can know it only as one of the two.
if TYPE_CHECKING:
    from mha import parallel as parallel
    from mha import parity as parity
    from mha import weights as weights
    from mha.arrays import (
        check_shape,
        masked_softmax,
        normal,
        ones,
        tensor,
        to_numpy,
        transpose_output,
        transpose_qkv,
        zeros,
    )
    from mha.core import dispatch as dispatch
    from mha.core.cache import Cache
    from mha.core.dispatch import backends
    from mha.core.options import names as names
    from mha.core.options.norms import Norm
    from mha.core.options.positions import Rotary, Temperature, alibi, t5_buckets
    from mha.core.options.rotations import dynamic, linear, llama3_frequencies, longrope, proportional, yarn
    from mha.core.options.seeds import manual_seed
    from mha.layer import MultiHeadAttention
    from mha.learn import d2l as d2l
    from mha.learn import explain as explain
    from mha.learn import heads as heads
    from mha.learn import plot as plot
    from mha.learn.write import write
    from mha.parity import testing as testing
    from mha.weights.sources import from_native, load, sync
else:
    from mha import backends

    __getattr__, __dir__ = lazy.attach(__name__)  # for a type checker, every name would be there

import_mxnet.enable()

__all__ = [
    "Cache",
    "MultiHeadAttention",
    "Norm",
    "Rotary",
    "Temperature",
    "alibi",
    "backends",
    "check_shape",
    "dynamic",
    "from_native",
    "linear",
    "llama3_frequencies",
    "load",
    "longrope",
    "manual_seed",
    "masked_softmax",
    "normal",
    "ones",
    "proportional",
    "sync",
    "t5_buckets",
    "tensor",
    "to_numpy",
    "transpose_output",
    "transpose_qkv",
    "write",
    "yarn",
    "zeros",
]
__version__ = "0.1.0"
