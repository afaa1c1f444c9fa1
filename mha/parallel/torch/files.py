"""Collect, save and load the weights of a layer that is split over ranks, by `fully_shard`, too."""

import torch
from torch import distributed
from torch.distributed.tensor import DTensor, distribute_tensor

from mha.backends.torch.arrays import place, tensor, to_numpy
from mha.backends.torch.weights import canonical, parameters
from mha.core.options import checks
from mha.core.options.config import shapes
from mha.parallel import whole

from .ranks import global_rank
from .split import Split, check_layer


def gather(layer):
    """See `mha.parallel.gather`."""
    check_layer(layer)
    named = {}
    for name, X in parameters(layer).items():
        X = X.full_tensor() if isinstance(X, DTensor) else X
        named[name] = to_numpy(canonical(X)).copy()
    return checks.weights(shapes(layer.config), layer.config.dtype, named)


def save(layer, path):
    """See `mha.parallel.save`."""
    arrays, meshes = gather(layer), _meshes(layer)
    writes = all(mesh.get_local_rank() == 0 for mesh in meshes)
    problem = whole.write(path, layer.config, arrays) if writes else None
    for mesh in meshes:
        first = global_rank(mesh, 0)
        sent = torch.tensor(whole.error_bytes(problem), device=mesh.device_type)
        distributed.broadcast(sent, first, group=mesh.get_group())
        problem = problem or whole.error_of_rank(first, to_numpy(sent))
    if problem:
        raise problem


def load(layer, path):
    """See `mha.parallel.load`."""
    check_layer(layer)
    arrays = whole.read(path, layer.config)
    with torch.no_grad():
        for name, X in parameters(layer).items():
            new = canonical(tensor(arrays[name], place(layer)))
            if isinstance(X, DTensor):
                # Each rank has read the whole, and takes its part.
                new = distribute_tensor(new.contiguous(), X.device_mesh, X.placements, src_data_rank=None)
            X.copy_(new)
    return layer


def _meshes(layer):
    """The meshes, of one dimension each, over which a layer is split."""
    split = parameters(layer)["W_q.kernel"]
    mesh = split.device_mesh if isinstance(split, DTensor) else None
    names = () if mesh is None else mesh.mesh_dim_names if mesh.ndim > 1 else (None,)
    found = [mesh if name is None else mesh[name] for name in names]
    return [*found, layer.sequence] if isinstance(layer, Split) and layer.sequence is not None else found
