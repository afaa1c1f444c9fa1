"""The ways that JAX splits a layer over devices, to be measured, compiled."""

import functools
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mha import parallel
from mha.bench.steps import UNSPLIT, Results, UnavailableError, Way
from mha.parallel.jax.proof import Ranks

AXIS = "devices"
# By name, what `attend` takes.
WAYS: dict[str, dict[str, Any]] = {"heads": {"heads": AXIS}}
WAYS |= {how: {"sequence": AXIS, "how": how} for how in ("ulysses", "ring", "gather")}
WAYS |= {"ring in order": WAYS["ring"] | {"zigzag": False}}


class Group:
    """All devices, parts of the processor, driven by one process."""

    def __init__(self, rank, count, meet, limit):
        self.mesh = Mesh(Ranks(rank, count, meet, limit).devices, (AXIS,))

    def together(self, value):
        """The value of the one process."""
        return [value]

    def ways(self, shape, kind):
        """By name, a function that makes a way to call a layer of a shape."""
        ours = {name: functools.partial(self.split, shape, kind, options) for name, options in WAYS.items()}
        return {UNSPLIT: functools.partial(self.unsplit, shape, kind), **ours}

    def unsplit(self, shape, kind):
        """The whole layer, on one device."""
        module, variables = shape.layer("jax").layer.unbind()
        return _compile(kind, module.apply, variables, shape, shape.inputs(), shape.cotangent())

    def split(self, shape, kind, options):
        """A layer split over all devices by these options of `attend`; its arrays lie on their devices already."""
        module, variables = shape.layer("jax").layer.unbind()
        place = functools.partial(NamedSharding, self.mesh)
        attend = functools.partial(parallel.attend, module, mesh=self.mesh, **options)
        rows = options.get("sequence") if shape.T % self.mesh.size == 0 else None  # which no array has in uneven parts
        try:
            of_weights = parallel.plan(module, AXIS, self.mesh) if "heads" in options else PartitionSpec()
            where = jax.tree.map(place, of_weights, is_leaf=lambda X: isinstance(X, PartitionSpec))
            variables = jax.device_put(variables, where)
            X, cotangent = jax.device_put((shape.inputs(), shape.cotangent()), place(PartitionSpec(None, rows)))
            return _compile(kind, attend, variables, shape, X, cotangent)
        except ValueError as error:  # of a number of heads
            raise UnavailableError(error) from None


def _compile(kind, attend, variables, shape, X, cotangent):
    """A compiled way to call a layer; its memory is the program's, without arguments and results."""
    lengths, hiding = shape.lengths(), shape.call()

    def inference(variables, X, cotangent):
        return Results(attend(variables, X, X, X, lengths, **hiding))

    def training(variables, X, cotangent):
        output, pull_back = jax.vjp(lambda variables, X: attend(variables, X, X, X, lengths, **hiding), variables, X)
        by_variables, by_input = pull_back(cotangent)
        return Results(output, (by_input,), tuple(jax.tree.leaves(by_variables)))

    given = variables, X, cotangent
    compiled = jax.jit(training if kind == "training" else inference).lower(*given).compile()
    taken = compiled.memory_analysis().temp_size_in_bytes  # of one device
    return Way(lambda: jax.block_until_ready(compiled(*given)), lambda results: results, taken)
