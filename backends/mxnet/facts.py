"""MXNet with Gluon as a backend, in data: imports nothing. `mha.dispatch.Framework` says what each line means."""

TITLE = "MXNet"
ALIASES = ("gluon",)
NEEDS = ("mxnet",)
ARRAYS = ("mxnet",)
DTYPES = ("float32", "float64")
METHOD = "forward"
PACKAGES = ("requests>=2", "graphviz>=0.8.1", "setuptools>=65")
LAST = "pip install --no-deps mxnet==1.9.1"
SECONDS = 25
LACKS = {
    "arguments by name": "Gluon calls a block with arguments by position alone",
    "a compiler of calls": "its compiler takes the dense layers of a layer alone",
    "a state of precision": "nothing outside of a call changes its dtypes",
}
