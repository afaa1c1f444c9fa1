"""How PyTorch spreads a call over ranks, for the suite of `mha.parity.cases.devices`."""

import datetime

import numpy as np
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh

from mha import parallel
from mha.backends.torch.arrays import tensor, to_numpy
from mha.backends.torch.weights import canonical, parameters
from mha.parallel.parts import split_axes
from mha.parity.cases.devices import ALL, part_of_call
from mha.parity.rule.layouts import GRADIENT

from .sequence import HOWS

DATA, HEADS = "data (DistributedDataParallel)", "heads"
# Ways to split a sequence, by name, and what `parallelize` takes for them.
ROWS = {how: (how,) for how in HOWS} | {"ring in zigzag": ("ring", True)}


class Ranks:
    """One rank of a group, a process: on its own GPU where there are enough, else on the processor."""

    def __init__(self, rank, count, meet, limit):
        self.rank, self.count = rank, count
        kind = "cuda" if torch.cuda.device_count() >= count else "cpu"
        if kind == "cuda":
            torch.cuda.set_device(rank)
        self.place = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
        torch.distributed.init_process_group(
            {"cuda": "nccl", "cpu": "gloo"}[kind], f"file://{meet}", datetime.timedelta(seconds=limit),
            world_size=count, rank=rank,
        )  # fmt: skip
        self.mesh = init_device_mesh(kind, (count,), mesh_dim_names=("ranks",))
        self.alone = ()
        self.ways = {DATA: count, HEADS: 1, **dict.fromkeys(ROWS, 1)}
        if count % 2 == 0 and count > 2:
            self.both = init_device_mesh(kind, (2, count // 2), mesh_dim_names=("heads", "sequence"))
            self.ways |= {f"heads x {how}": 1 for how in HOWS}

    def compute(self, way, case, dtype, inputs, call):
        """Output and gradients of a case, as `mha.parity.cases.devices` asks for them: the part on this rank."""
        layer = case.layer("torch", dtype).layer.to(self.place)
        module, samples, mesh, heads = layer, ALL, None, None
        if way == DATA:
            size = case.batch // self.count
            samples = slice(self.rank * size, (self.rank + 1) * size)
            module = torch.nn.parallel.DistributedDataParallel(layer)
        elif way == HEADS:
            heads = parallel.parallelize(layer, self.mesh) and self.mesh
        elif way in ROWS:
            mesh = self.mesh
        else:
            heads, mesh = self.both["heads"], self.both["sequence"]
            parallel.parallelize(layer, heads)
        if mesh is not None:
            parallel.parallelize(layer, mesh, *ROWS[way.removeprefix("heads x ")])
        queries, keys = (rows_here(X.shape[1], mesh) for X in inputs[:2])
        own, places = part_of_call({name: X for name, X in call.items() if X is not None}, samples, queries)
        cuts = {"queries": queries, "keys": keys, "values": keys, "cotangent": queries}
        arrays = {name: X[samples, cut] for (name, cut), X in zip(cuts.items(), inputs, strict=True)}
        arrays |= {name: own.pop(name) for name in places}
        tensors = {name: tensor(np.ascontiguousarray(X), self.place) for name, X in arrays.items()}
        cotangent = tensors.pop("cotangent")
        for X in tensors.values():
            X.requires_grad_()
        output = module(**tensors, **own, training=False)
        output.backward(cotangent)

        found = {"output": (output, (samples, queries))}
        for name in ("queries", "keys", "values"):
            found[GRADIENT + name] = tensors[name].grad, (samples, cuts[name])
        for name, place in places.items():
            gradient = tensors[name].grad
            if way == DATA and arrays[name].shape == call[name].shape:
                torch.distributed.all_reduce(gradient)
            found[GRADIENT + name] = gradient, place
        axes = {} if heads is None else split_axes(layer.config, heads.size())
        for name, parameter in parameters(layer).items():
            gradient, place = canonical(parameter.grad), ()
            if way == DATA:
                gradient = gradient * self.count  # these are means
            if hasattr(gradient, "to_local"):
                gradient = gradient.to_local()
            if name in axes:
                place = _of_heads(axes[name], gradient.shape, heads)
            found[GRADIENT + name] = gradient, place
        return {name: (to_numpy(X), place) for name, (X, place) in found.items()}


def rows_here(total, mesh):
    """The rows of a sequence that lie on this rank."""
    if mesh is None:
        return ALL
    sizes = [len(part) for part in np.array_split(np.arange(total), mesh.size())]
    first = sum(sizes[: mesh.get_local_rank()])
    return slice(first, first + sizes[mesh.get_local_rank()])


def _of_heads(axis, shape, mesh):
    """The place of this rank's heads along an axis of a weight, of which the part has this shape."""
    axis = axis % len(shape)
    first = mesh.get_local_rank() * shape[axis]
    return (ALL,) * axis + (slice(first, first + shape[axis]),)
