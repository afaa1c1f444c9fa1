"""Split one layer over several devices by heads, by sequence or by batch, with the frameworks' own tools.

You bring the mesh and the launcher; this package splits the layer, and tests show that the results stay the same.
`shard` and `unshard` need no framework; the others use `mha/parallel/<framework>/`, which is imported on use.
"""

import importlib
import os
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.layer import MultiHeadAttention
from mha.parallel.parts import shard, unshard

__all__ = ["attend", "gather", "load", "parallelize", "plan", "save", "shard", "unshard"]


def plan(layer: Any, heads: str | None = None, mesh: Any = None) -> Any:
    """Plan how the heads of a layer are split over several devices, in the form that its framework takes.

    Args:
        layer: PyTorch: a layer, `attention.layer`, or any module that contains layers. JAX: the layer's module.
        heads: JAX: the name of the mesh's axis that the heads are split over; None = "heads".
        mesh: JAX: the `jax.sharding.Mesh`; None = one whose devices divide the heads of keys, too. Where they do not,
            the weights of keys and values are whole on each device.

    Returns:
        PyTorch: a dict for `torch.distributed.tensor.parallel.parallelize_module`, by the path of each layer in the
        module, "" for the module itself; entries for other modules may be added. JAX: a tree of `PartitionSpec`, in
        the form of the layer's variables, for `jax.sharding.NamedSharding`.

    Raises:
        TypeError: if it is no layer of PyTorch or JAX, or if `heads` or `mesh` came with a layer of PyTorch.
        ValueError: if the module contains no layer of mha, or if the devices of a mesh do not divide the heads.
    """
    given = {"heads": heads, "mesh": mesh}
    return _engine("plan", layer).plan(layer, **{name: X for name, X in given.items() if X is not None})


def parallelize(layer: Any, mesh: Any, how: str | None = None, zigzag: bool | None = None) -> Any:
    """Split a layer of PyTorch over the ranks of a mesh, in place; every rank of the mesh makes the same call.

    Args:
        layer: the layer, `attention.layer`, with the same weights on every rank.
        mesh: a `torch.distributed.device_mesh.DeviceMesh` of one dimension, such as `mesh["heads"]`.
        how: None splits the heads: each of N ranks has H / N of them and the heads of keys and values that they use,
            takes the whole inputs and returns the whole output; a norm over all heads takes its means over those of all
            ranks. If N does not divide the heads of keys, each rank has the weights of all of them, and computes those
            that it uses. The other ways split the sequence: each rank takes its consecutive slice of queries, keys and
            values, of any length, even 0, and returns the output of its queries. "ulysses" gives each rank all rows of
            some heads (N <= H); "ring" passes keys and values from rank to rank, for any number of ranks; "gather"
            collects all keys and values on every rank.
        zigzag: of a ring: whether each rank attends for rows of the front and of the back, so that all have as much to
            do in causal order; they are exchanged in the call, and the result is of the rank's own rows. None = where a
            call is causal and has no window, positions or segments, and no mask or bias with a row for each query.

    Returns:
        The layer. A layer may be split by heads and then by sequence, over two dimensions of a mesh. Once it is split
        by sequence, mask, score bias, lengths per query, positions and segments have a row for each query of this rank;
        mask, score bias, `key_positions` and `key_segments` have a column for each key of the whole sequence; and
        `offset` is the position of the first query of the whole sequence. A mask or bias with one row on every rank
        holds this row for all queries, unless each rank has only one query. In a call with a cache, which has
        an equal part of its slots on each rank, all ranks pass the same new tokens and get the whole output.

    Raises:
        TypeError, ValueError: if the layer or the mesh is of another kind, if N does not divide the heads, or if ranks
            that split the sequence have different weights.

    PyTorch's `parallelize_module` takes the dict of `plan`, and splits heads alone.

    Sources: Shoeybi et al., Megatron-LM (2019), section 3; Jacobs et al., DeepSpeed Ulysses (2023); Liu et al., Ring
    Attention with Blockwise Transformers (2023).
    """
    return _engine("parallelize", layer).parallelize(layer, mesh, how, zigzag)


def attend(module: Any, variables: Any, queries: Any, keys: Any, values: Any, *call: Any, **options: Any) -> Any:
    """Call a layer of JAX over the devices of a mesh, by `jax.shard_map`; the call may be compiled and differentiated.

    Args:
        module, variables: the layer, `attention.layer.unbind()`; the variables may be sharded as `plan` says.
        queries, keys, values: the whole arrays, sharded or not.
        call: valid_lens and the other arguments of a call, then training, as for the layer, also by name.
        options: `rngs`, {"dropout": key}, for dropout; `mesh`, a `jax.sharding.Mesh`; `data`, `heads` and `sequence`,
            the names of the mesh's axes that batch, heads and sequence are split over (all optional); `how`, the way to
            split the sequence: "ring" (the least memory), "ulysses" (at most as many devices as heads) or "gather";
            `zigzag`, whether a ring exchanges rows so that in causal order all devices have as much to do: None = with
            causal order alone, and not beside a window, positions, segments, or a mask or bias with a row for each
            query. A norm over all heads takes its means over those of all devices. If the devices do not divide the
            heads of keys, each computes those that its heads use; a cache that is returned then has copies of them, as
            many on each device, and is taken again.

    With a cache, `sequence` splits its slots, in one way for every `how`: each device keeps as many of them, attends to
    those, and the results are merged. The new tokens are on all of its devices.

    Returns:
        The whole output (B, Q, D), on the devices of the mesh; with a cache also the one that is left.

    Raises:
        TypeError, ValueError: if an argument does not fit the layer or the mesh, or if a size cannot be divided.
    """
    return _engine("attend", module).attend(module, variables, queries, keys, values, *call, **options)


def gather(layer: Any) -> dict[str, np.ndarray]:
    """Collect the whole layer's weights as canonical NumPy arrays on every rank; all ranks must call it.

    layer: a layer that is split over ranks or devices, of PyTorch (`parallelize`, `fully_shard`) or JAX (bound).
    """
    return _engine("gather", layer).gather(layer)


def save(layer: Any, path: str | os.PathLike[str]) -> None:
    """Write a split layer as a whole to a safetensors file, as `attention.save` does; all ranks call it, one writes.

    Raises the error of the writing rank on every rank: see `mha.MultiHeadAttention.save`.
    """
    _engine("save", layer).save(layer, path)


def load(layer: Any, path: str | os.PathLike[str]) -> Any:
    """Load the weights of a file that `save` wrote into a layer; every rank takes its part of them.

    layer: split or not, of the file's configuration. PyTorch: changed in place; JAX: returned as a new bound layer.

    Raises mha.weights.FileError or ValueError if `save` did not write the file, or if its configuration is another one.
    """
    return _engine("load", layer).load(layer, path)


def _engine(what: str, layer: Any) -> Any:
    """The module that splits layers of this layer's framework."""
    if isinstance(layer, MultiHeadAttention):
        raise TypeError("layer is an mha.MultiHeadAttention, expected the framework's own layer: write attention.layer")
    backend = dispatch.backend_of(layer)
    backends = [name for name, functions in dispatch.facts("PARALLEL", ()).items() if what in functions]
    if backend not in backends:
        came = type(layer).__name__ if backend is None else f"{type(layer).__name__} of {backend}"
        names = " or ".join(backends)
        raise TypeError(
            f"layer is a {came}, expected a layer of {names}: mha.parallel.{what} is for {names}; mha.parallel.shard "
            "splits the weights of any layer by heads"
        )
    dispatch.load(backend)
    return importlib.import_module(f"mha.parallel.{backend}")
