"""MXNet with Gluon as a backend, in data: imports nothing. `dispatch.Framework` has what the core asks."""

TITLE = "MXNet"
ALIASES = ("gluon",)
NEEDS = ("mxnet",)
ARRAYS = ("mxnet",)
DTYPES = ("float32", "float64")
METHOD = "forward"
PACKAGES = ("requests>=2.25", "graphviz>=0.8.1", "setuptools>=65")
LAST = "pip install --no-deps mxnet==1.9.1"
SECONDS = 25
LACKS = {
    "arguments by name": "Gluon calls a block with arguments by position alone",
    "a compiler of calls": "its compiler takes the dense layers of a layer alone",
    "a state of precision": "nothing outside of a call changes its dtypes",
    "a section of the next edition": "the book's next edition has its chapter on attention for PyTorch and JAX alone",
}
ALONE = {
    "engine/recomputing.py": "the framework has no function that computes a block again",
    "hiding.py: where": "a number in the place of an array sends no gradient",
    "hiding.py: over_axes": "a gradient over an empty axis is whatever the memory held",
    "gradients.py: thaw, adopt": "a frozen or compiled layer cannot be copied",
    "weights.py: canonical": "a kernel is stored as (out, in)",
    "weights.py: Dense": "it takes no empty array",
    "weights.py: data": "parameters are read under a lock",
    "weights.py: add_parameter": "parameters are made in two steps",
    "learn/d2l: masked_softmax, MultiHeadAttention.forward": "`np.array([3, 2])` holds floats",
}
