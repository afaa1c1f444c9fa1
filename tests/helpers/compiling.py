"""A plugin for pytest that compiles the layers of written files before their proofs call them; without `mha`."""

import functools
import importlib

# The axes whose sizes have to be known: widths, the heads of a cache, and whether a mask has one column.
LAST = ("queries", "keys", "values", "mask", "score_bias")
KNOWN = dict.fromkeys(LAST, (-1,)) | {"cache": (-3, -1)}


class Compiling:
    """Puts a compiled layer in the place of the one that a proof imports, and runs calls with gradients, in float64.

    quick: of each file the last call alone, which has all arguments; else also one with padding, and PyTorch's graph
    is one for any sizes.
    """

    def __init__(self, backend, quick):
        self.compiled, self.quick = COMPILERS[backend], quick

    def pytest_collection_modifyitems(self, items):
        of_modules = {}
        for item in items:
            if item.callspec.params["dtype"] == "float64":
                of_modules.setdefault(item.module, []).append(item)
        items[:] = []
        for module, own in of_modules.items():
            items += [own[-1]] if self.quick else [own[int(module.CASE["padded"])], own[-1]]
            module.MultiHeadAttention = self.compiled(module.MultiHeadAttention, self.quick)


def _parted(given):
    """The arrays of a call and of its cache, which a compiler does not know, and the rest, which it does."""
    arrays = {name: X for name, X in given.items() if hasattr(X, "shape") or isinstance(X, tuple)}
    return arrays, {name: X for name, X in given.items() if name not in arrays}


def torch(made, quick):
    """One graph: `aot_eager` traces both passes as the default does, without a C++ compiler."""
    dynamo = importlib.import_module("torch._dynamo")
    dynamo.config.recompile_limit = 1000  # or what earlier layers compiled counts against the limit

    def make(**sizes):
        layer = made(**sizes)
        layer.compile(backend="aot_eager", fullgraph=True, dynamic=not quick)
        return layer

    return make


def tensorflow(made, quick):
    """A graph in which sizes that are not the layer's are unknown; XLA compiles it unless it has to be quick."""
    tf = importlib.import_module("tensorflow")

    def spec(known, X):
        sizes = enumerate(X.shape, -len(X.shape))
        return tf.TensorSpec([size if axis in known else None for axis, size in sizes], X.dtype)

    class Compiled(made):
        def __call__(self, **given):
            arrays, static = _parted(given)
            specs = {
                name: tf.nest.map_structure(functools.partial(spec, KNOWN.get(name, ())), X)
                for name, X in arrays.items()
            }
            call = super().__call__
            return tf.function(lambda arrays: call(**arrays, **static), [specs], jit_compile=not quick)(arrays)

    return Compiled


def jax(made, quick):
    jax = importlib.import_module("jax")

    class Compiled(made):
        def apply(self, variables, **given):
            arrays, static = _parted(given)
            call = super().apply
            return jax.jit(lambda variables, arrays: call(variables, **arrays, **static))(variables, arrays)

    return Compiled


def nnx(made, quick):
    flax = importlib.import_module("flax.nnx")

    class Compiled(made):
        def __call__(self, **given):
            arrays, static = _parted(given)
            call = super().__call__.__func__
            return flax.jit(lambda layer, arrays: call(layer, **arrays, **static))(self, arrays)

    return Compiled


def mlx(made, quick):
    mx = importlib.import_module("mlx.core")

    class Compiled(made):
        def __call__(self, **given):
            arrays, static = _parted(given)
            call = super().__call__
            return mx.compile(lambda arrays: call(**arrays, **static), inputs=self.state)(arrays)

    return Compiled


def mxnet(made, quick):
    """MXNet compiles the dense layers alone."""

    def make(**sizes):
        layer = made(**sizes)
        layer.hybridize()
        return layer

    return make


COMPILERS = {"torch": torch, "tensorflow": tensorflow, "jax": jax, "nnx": nnx, "mlx": mlx, "mxnet": mxnet}
