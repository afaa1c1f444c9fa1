"""A layer of PyTorch whose heads, sequence or both are split over ranks: its class, and how a layer gets it.

Kernels are DTensors, which optimisers and `torch.distributed.checkpoint` know. A call makes a layer of the original
class with the heads on this rank, so that nothing of the computation is written again.
"""

import contextlib
import functools

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from mha.backends.torch import arrays
from mha.backends.torch import layer as lesson
from mha.core.call import check, takes_call
from mha.core.options import checks
from mha.parallel.parts import heads_of_keys, names_of_copies, over_all, part_of, split_axes
from mha.parallel.rows import check_zigzag

from . import norms, sequence, slots
from .agreement import agree_on_inputs, agree_on_rows, digest_of_weights
from .ranks import agree, join_ranks, own_randomness, share, sum_ranks
from .twins import twin_of, with_parameters

WHOLE = "make a layer with the weights that mha.parallel.gather collects"


class Split:
    """A layer over several ranks; it comes before the layer's own class in the bases.

    heads, sequence: the meshes, of one dimension, over which heads and sequence are split, or None.
    how, zigzag: how the sequence is split, as `mha.parallel.parallelize` takes them.
    calls: how many calls this rank has begun.
    """

    heads = sequence = how = zigzag = None
    calls = 0

    @property
    def kept(self):
        """The configuration of the heads on this rank, for its cache."""
        return self.config if self.heads is None else part_of(self.config, self.heads.size())

    @property
    def slot_parts(self):
        """The number of ranks over which the slots of a cache are split."""
        return 1 if self.sequence is None else self.sequence.size()

    @takes_call
    def forward(self, queries, keys, values, call):
        """Call the layer as if it were whole; `mha.parallel.parallelize` says which rows a rank takes and gives."""
        if self.sequence is not None:  # (B, Q of this rank, D), or (B, Q, D) and the cache
            return self.attend_sequence(queries, keys, values, call)
        if torch.compiler.is_compiling():  # where ranks exchange nothing
            call = check(arrays, self, queries, keys, values, call)
        else:
            call = agree_on_inputs(self, queries, keys, values, call)
        return self.attend(queries, keys, values, call)  # (B, Q, D)

    @torch.compiler.disable  # how many rows each rank has is known in a call alone
    def attend_sequence(self, queries, keys, values, call):
        """Call the layer with this rank's rows; with a cache, with new tokens, the same on all ranks, and its slots."""
        if call.cache is not None:
            return self.attend(queries, keys, values, agree_on_inputs(self, queries, keys, values, call))
        return self.attend(queries, keys, values, *agree_on_rows(self, queries, keys, values, call))

    def attend(self, queries, keys, values, call, rows=None):
        """Take the steps of the whole layer; the checked call is the same on all ranks but for the rows of a sequence.

        rows: the `Rows` of a split sequence.
        """
        if call.plan.traced:
            raise ValueError(f"trace came to a layer that is split over {self._ranks()}, expected a whole one; {WHOLE}")
        if call.return_weights and self.sequence is not None:
            raise ValueError(
                "return_weights came to a layer that is split by its sequence, expected False: no rank has them"
            )
        part, mesh = self.part(rows), self.heads
        if call.cache is not None and self.sequence is not None:
            part = slots.over(part, self.sequence)
        call = call._replace(training=self.training if call.training is None else call.training)
        if mesh is None:
            with self.randomness(call):
                return part.attend(queries, keys, values, call)
        once = {id(X): share(X, mesh) for X in (queries, keys, values)}  # what comes three times is summed once
        queries, keys, values = once[id(queries)], once[id(keys)], once[id(values)]
        with self.randomness(call):
            found = part.attend(queries, keys, values, self.of_heads(call))
        output, *others = found if isinstance(found, tuple) else (found,)
        output = sum_ranks(output, mesh)  # (B, Q, D)
        if self.config.bias:
            bias = self.W_o.bias.to_local()
            output = output + (bias if rows is None else share(bias, self.sequence))
        if call.return_weights:
            others[0] = join_ranks(others[0], 1, mesh)  # (B, H, Q, K)
        return (output, *others) if others else output

    def part(self, rows):
        """The layer of this rank's heads, in plain tensors, of the whole layer's original class."""
        if self.heads is None:
            part = twin_of(self)
        else:
            count = self.heads.size()
            known = axes_of(self, count), {*map(_parameter_name, names_of_copies(self.config, count))}
            part = with_parameters(self, functools.partial(self.own, *known))
            part.config = part_of(self.config, count)
            part.W_o.bias = None  # added once, to the sum
        part.__class__ = type(self).whole
        if rows is not None:
            part = sequence.over(part, self.sequence, self.how, rows, self.zigzag)
        return norms.over(part, self.heads, self.here()) if self.together() else part

    def own(self, axes, copies, name, parameter):
        """This rank's part of a parameter; if heads on several ranks use it, it gets the gradients of all of them.

        axes: of `axes_of`; copies: names of parameters of which this rank takes only the heads of keys that it uses.
        """
        own = parameter.to_local()
        if name in axes:
            return own
        own = share(own, self.heads)
        if name not in copies:
            return own
        each = own.unflatten(0, (self.config.num_key_value_heads, -1))  # (G, d, any) or (G, d)
        here = heads_of_keys(self.config, self.heads.size())[self.heads.get_local_rank()]
        return torch.cat([each[head] for head in here])  # (heads of keys here * d, any)

    def of_heads(self, call):
        """The call for the heads on this rank; with a norm over all heads, the call for those of all ranks."""
        call = call.map_arrays(lambda X: share(X, self.heads))
        return call if self.together() else call.part(heads=self.here())

    def here(self):
        """The heads on this rank, as a slice."""
        count, rank = self.config.num_heads // self.heads.size(), self.heads.get_local_rank()
        return slice(rank * count, (rank + 1) * count)

    def together(self):
        """Whether the ranks compute the means of a norm together."""
        return self.heads is not None and bool(over_all(self.config))

    def randomness(self, call):
        """A context in which each rank draws its own random numbers for dropout; a plain one without dropout."""
        if not (call.training and self.config.dropout):
            return contextlib.nullcontext()
        return own_randomness(distributed.get_rank(), arrays.place(self))

    def __deepcopy__(self, memo):
        raise ValueError(
            f"a copy, which vjp and gradients take too, came to a layer that is split over {self._ranks()}, expected a "
            f"whole one; call backward on its output, or {WHOLE}"
        )

    def __reduce_ex__(self, protocol):
        raise ValueError(
            f"a pickle came to a layer that is split over {self._ranks()}, expected a whole one; call "
            "mha.parallel.save, or torch.distributed.checkpoint with its state_dict()"
        )

    def _ranks(self):
        meshes = [mesh for mesh in (self.heads, self.sequence) if mesh is not None]
        return " x ".join(str(mesh.size()) for mesh in meshes) + " ranks"


@functools.cache
def _split_class(whole):
    """The class of a layer over several ranks; whole: its own class."""
    return type(whole.__name__, (Split, whole), {"whole": whole, "__doc__": Split.__doc__, "__module__": __name__})


class HeadParallel(ParallelStyle):
    """The style by which `parallelize_module` splits the heads of a layer of `mha` over a mesh of one dimension."""

    def _apply(self, module, device_mesh):
        check_mesh(module, device_mesh)
        if isinstance(module, Split):
            raise ValueError("layer is split already, expected a whole one; split by heads first, then by sequence")
        part_of(module.config, device_mesh.size())  # or it cannot be split so
        agree(device_mesh, {"the digest of the weights": digest_of_weights(module)})
        axes = axes_of(module, device_mesh.size())
        for name, parameter in dict(module.named_parameters()).items():
            placement = Shard(axes[name]) if name in axes else Replicate()
            path, _, last = name.rpartition(".")
            split = distribute_tensor(parameter.detach(), device_mesh, [placement])
            module.get_submodule(path).register_parameter(last, nn.Parameter(split, parameter.requires_grad))
        module.__class__ = _split_class(type(module))
        module.heads = device_mesh
        return module


def axes_of(module, count):
    """The axis along which each parameter, (out, in), is split over so many ranks, by name; others stay whole."""
    return {_parameter_name(name): int(axis == 0) for name, axis in split_axes(module.config, count).items()}


def _parameter_name(name):
    """The name that a layer of PyTorch has for a weight."""
    return name.replace("kernel", "weight")


def plan(module):
    """See `mha.parallel.plan`."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"layer is {checks.brief(module)}, expected a module of PyTorch")
    paths = [path for path, one in module.named_modules() if isinstance(one, lesson.MultiHeadAttention)]
    if not paths:
        raise ValueError(
            f"layer is a {type(module).__name__} without a layer of mha, expected one, or a model with one"
        )
    return {path: HeadParallel() for path in paths}


def parallelize(layer, mesh, how=None, zigzag=None):
    """See `mha.parallel.parallelize`."""
    check_mesh(layer, mesh)
    check_zigzag(zigzag, how)
    if how is None:
        return parallelize_module(layer, mesh, HeadParallel())
    checks.choice("how", how, tuple(sequence.HOWS))
    if isinstance(layer, Split) and layer.sequence is not None:
        raise ValueError("layer is split by its sequence already, expected one that is whole, or split by heads")
    heads = layer.config.num_heads if not isinstance(layer, Split) else layer.config.num_heads // layer.heads.size()
    if how == "ulysses" and mesh.size() > heads:
        raise ValueError(f'how is "ulysses" on {mesh.size()} ranks, expected at most {heads}, one a head; use "ring"')
    agree(mesh, {"the digest of the weights": digest_of_weights(layer)})
    if not isinstance(layer, Split):
        layer.__class__ = _split_class(type(layer))
    layer.sequence, layer.how, layer.zigzag = mesh, how, zigzag
    return layer


def check_layer(layer):
    """Check that it is a layer of `mha`."""
    if not isinstance(layer, lesson.MultiHeadAttention):
        raise TypeError(
            f"layer is a {type(layer).__name__}, expected attention.layer; mha.parallel.plan finds those in a model"
        )


def check_mesh(layer, mesh):
    """Check that it is a layer of `mha` and a mesh of one dimension."""
    check_layer(layer)
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh is {checks.brief(mesh)}, expected a torch.distributed.device_mesh.DeviceMesh")
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or ()
        hint = f', such as mesh["{names[0]}"]' if names else ""
        raise ValueError(f"mesh has {mesh.ndim} dimensions, expected one{hint}")
