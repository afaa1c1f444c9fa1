"""One layer on several devices: its heads, its sequence or its batch in parts, on the frameworks' own engines.

The user brings the mesh and the launcher; here are the plan, the meaning and the proof. `shard` and `unshard` need no
framework; the others ask `backends/<framework>/parallel/`, which is imported when it is used.
"""

import importlib
import os
from typing import Any

import numpy as np

from mha import dispatch
from mha.layer import MultiHeadAttention
from mha.parallel.parts import shard, unshard

__all__ = ["attend", "gather", "load", "parallelize", "plan", "save", "shard", "unshard"]


def plan(layer: Any, heads: str | None = None) -> Any:
    """How the heads of a layer lie on several devices, in the words of its framework's engine.

    Args:
        layer: PyTorch: a layer, `attention.layer`, or any module that has some in it. JAX: the layer's module.
        heads: JAX: the name of the mesh's axis that the heads are split over, "heads" if it is not given.

    Returns:
        PyTorch: a dict for `torch.distributed.tensor.parallel.parallelize_module`, by the path of each layer in the
        module, "" for the module itself; entries for other modules may be added. JAX: a tree of `PartitionSpec`, in
        the form of the layer's variables, for `jax.sharding.NamedSharding`.

    Raises:
        TypeError: if it is no layer of PyTorch or JAX, or `heads` came for a layer of PyTorch.
        ValueError: if the module has no layer of ours in it.
    """
    return _engine("plan", layer).plan(layer, **({} if heads is None else {"heads": heads}))


def parallelize(layer: Any, mesh: Any, how: str | None = None) -> Any:
    """Split a layer of PyTorch over the ranks of a mesh, in place; every rank of the mesh calls it alike.

    Args:
        layer: the layer, `attention.layer`, with the same weights on every rank.
        mesh: a `torch.distributed.device_mesh.DeviceMesh` of one dimension, such as `mesh["heads"]`.
        how: None splits the heads: every rank has H / N of them and G / N of the heads of keys and values, takes the
            whole inputs and gives the whole output. Otherwise the sequence is split: every rank takes its consecutive
            slice of queries, keys and values, of any length, 0 too, and gives the output of its queries. "ulysses"
            gives each rank all rows of some heads (N <= H); "ring" passes keys and values from rank to rank, for any
            number of them; "gather" collects all keys and values on every rank.

    Returns:
        The layer. Split by heads and then by sequence, over two dimensions of a mesh, it is both. Split by sequence,
        mask, score bias and lengths per query have a row for each query of this rank and a column for each key of
        the whole, and `offset` is the position of the first query of the whole. Masks and biases of one row on all
        ranks have that row for all queries, unless each rank has but one query.

    Raises:
        TypeError, ValueError: if the layer or the mesh is of another kind, the heads do not divide, or ranks that
            split the sequence have other weights.

    Sources: Shoeybi et al., Megatron-LM (2019), section 3; Jacobs et al., DeepSpeed Ulysses (2023); Liu et al., Ring
    Attention with Blockwise Transformers (2023).
    """
    return _engine("parallelize", layer, ("torch",)).parallelize(layer, mesh, how)


def attend(module: Any, variables: Any, queries: Any, keys: Any, values: Any, *call: Any, **options: Any) -> Any:
    """Call a layer of JAX over the devices of a mesh, by `jax.shard_map`; may be compiled and differentiated.

    Args:
        module, variables: the layer, `attention.layer.unbind()`; the variables may be sharded as `plan` says.
        queries, keys, values: the whole arrays, sharded or not.
        call: valid_lens, mask, score_bias, causal, offset, head_gates, training, as for the layer, by name too.
        options: `rngs`, {"dropout": key}, where weights are dropped; `mesh`, a `jax.sharding.Mesh`; `data`, `heads`
            and `sequence`, names of its axes that batch, heads and sequence are split over, any of them; `how` the
            sequence is: "ring" (the least memory), "ulysses" (at most as many devices as heads) or "gather".

    Returns:
        The output (B, Q, D), whole, on the devices of the mesh.

    Raises:
        TypeError, ValueError: if an argument does not fit the layer or the mesh, or sizes do not divide.
    """
    return _engine("attend", module, ("jax",)).attend(module, variables, queries, keys, values, *call, **options)


def gather(layer: Any) -> dict[str, np.ndarray]:
    """The whole layer's weights as canonical NumPy arrays, on every rank: ranks send to one another, all must call it.

    layer: one that is split over ranks or devices, of PyTorch (`parallelize`, `fully_shard`) or JAX (bound).
    """
    return _engine("gather", layer).gather(layer)


def save(layer: Any, path: str | os.PathLike[str]) -> None:
    """Write the whole of a split layer to a safetensors file, as `attention.save` does; all ranks call it, one writes.

    Raises on every rank what the writing one raised: see `mha.MultiHeadAttention.save`.
    """
    _engine("save", layer).save(layer, path)


def load(layer: Any, path: str | os.PathLike[str]) -> Any:
    """The layer with the weights of a file of ours, of which every rank reads its part.

    layer: split or not, of the file's configuration. PyTorch: changed in place; JAX: a layer bound anew.

    Raises mha.weights.FileError or ValueError if the file is none of ours or of another configuration.
    """
    return _engine("load", layer).load(layer, path)


def _engine(what: str, layer: Any, backends: tuple[str, ...] = ("torch", "jax")) -> Any:
    """What splits the layers of a layer's framework."""
    if isinstance(layer, MultiHeadAttention):
        raise TypeError("layer is an mha.MultiHeadAttention, expected the framework's own layer: write attention.layer")
    backend = dispatch.backend_of(layer)
    if backend not in backends:
        came = type(layer).__name__ if backend is None else f"{type(layer).__name__} of {backend}"
        names = " or ".join(backends)
        raise TypeError(
            f"layer is a {came}, expected a layer of {names}: mha.parallel.{what} is for {names}; mha.parallel.shard "
            "splits the weights of any layer by heads"
        )
    dispatch.load(backend)
    return importlib.import_module(f"mha.backends.{backend}.parallel")
