"""How JAX spreads a call over devices, for the suite of `mha.parity.cases.devices`."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mha import parallel
from mha.backends.jax.weights import parameters
from mha.core import dispatch
from mha.core.call import FLOATS
from mha.parity.cases.devices import part_of_call
from mha.parity.rule.layouts import GRADIENT

from .sequence import HOWS

JIT = "data (jit)"


class Ranks:
    """All devices, driven by one process: GPUs or TPUs where there are enough, else parts of the processor."""

    def __init__(self, rank, count, meet, limit):
        devices = jax.devices() if len(jax.devices()) >= count else jax.devices("cpu")
        self.devices = np.array(devices[:count])
        self.alone = ()
        self.ways = {JIT: count, "data": count, "heads": 1, **dict.fromkeys(HOWS, 1)}
        if count % 4 == 0:
            self.ways |= {f"data x heads x {how}": 2 for how in HOWS}

    def compute(self, way, case, dtype, inputs, call):
        """Output and gradients of a case, as `mha.parity.cases.devices` asks for them: of the whole."""
        with dispatch.load("jax").context(dtype):
            module, variables = case.layer("jax", dtype).layer.unbind()
            *names, last = way.split(" x ")
            sizes = (2, 2, len(self.devices) // 4) if names else (len(self.devices),)
            axes = {"sequence" if name in HOWS else name: f"axis_{name}" for name in (*names, last) if way != JIT}
            devices = self.devices.reshape(sizes)  # (2, 2, N / 4) or (N,)
            mesh = Mesh(devices, tuple(axes.values()) or ("data",))
            given, _ = part_of_call({name: X for name, X in call.items() if X is not None})
            arrays = dict(zip(("queries", "keys", "values"), inputs[:3], strict=True))
            arrays |= {name: given.pop(name) for name in FLOATS if name in given}
            cotangent = inputs[3]
            if way == JIT:
                attend = functools.partial(module.apply, **given)
                arrays, cotangent = jax.tree.map(functools.partial(_spread, mesh, case.batch), (arrays, cotangent))
            else:
                how = {"how": last} if last in HOWS else {}
                attend = functools.partial(parallel.attend, module, mesh=mesh, **axes, **how, **given)

            @jax.jit
            def both(arrays, variables, cotangent):
                output, pull = jax.vjp(lambda arrays, variables: attend(variables, **arrays), arrays, variables)
                return output, *pull(cotangent)

            output, by_inputs, by_variables = both(arrays, variables, cotangent)
            by_weights = parameters(module.bind(by_variables))
            found = {"output": output} | {GRADIENT + name: X for name, X in (by_inputs | by_weights).items()}
            return {name: (np.asarray(X), ()) for name, X in found.items()}


def _spread(mesh, batch, X):
    """Spread the samples of an array over the devices; an array without an axis of samples is copied to each."""
    spec = PartitionSpec("data") if X.ndim > 2 and len(X) == batch else PartitionSpec()
    return jax.device_put(X, NamedSharding(mesh, spec))
