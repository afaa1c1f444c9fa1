"""Exchanges between ranks: check that all make the same call, sum outputs and gradients, draw own random numbers."""

import contextlib
import hashlib

import numpy as np
import torch
from torch import distributed
from torch.autograd.function import once_differentiable

from mha.core.call import ROWS

TAG = 17  # of these messages, beside what else is sent from rank to rank
# Integers in a message: as many whatever a rank does, since an engine ends the process where sizes differ.
LENGTH = 12 + 2 * len(ROWS)
MEETS, CALLS, REFUSES, FAILS = range(4)  # what a rank is about to do
DOES = {MEETS: "sends or waits for numbers", CALLS: "begins a call", REFUSES: "refuses its arguments"}
DOES[FAILS] = "has failed inside a call"

# 1. Whether all make the same call


def agree(mesh, alike, own=()):
    """Check that ranks make the same call, before a collective hangs or reads wrong memory.

    Args:
        mesh: of one dimension.
        alike: values that must be the same on all ranks, by name: numbers, texts and NumPy's integers.
        own: integers that may differ.

    Returns:
        The own integers of all ranks, in their order.

    Raises:
        ValueError: on every rank; it names the rank that differs or has refused its arguments.
        RuntimeError: if a rank does not answer, or does something else.
    """
    everybody = _exchange(mesh, CALLS, [*map(_digest, alike.values()), *own])
    for rank, theirs in enumerate(everybody):
        for number, name in enumerate(alike):
            if theirs[number] != everybody[0][number]:
                other, first = global_rank(mesh, rank), global_rank(mesh, 0)
                raise ValueError(
                    f"{name} of rank {other} is not that of rank {first}, expected the same on all {mesh.size()} ranks "
                    f"of the group; here, on rank {distributed.get_rank()}, it is {_brief(alike[name])}"
                )
    return [theirs[len(alike) :] for theirs in everybody]


def in_step(mesh, found):
    """Check that all ranks are in the same call; found: how many calls each has begun, then other integers.

    A rank that caught an error inside a call and went on would take part in its next call with another batch.
    """
    for rank, (calls, *_) in enumerate(found):
        if calls != found[0][0]:
            other, first = global_rank(mesh, rank), global_rank(mesh, 0)
            raise RuntimeError(
                f"rank {other} begins call {calls} of this layer where rank {first} begins call {found[0][0]}, "
                "expected the same call on all: one of them caught an error inside a call and went on, and their "
                "batches would be mixed; let such an error end all ranks, and start again from what was saved"
            )


def settle_errors(mesh, error):
    """Tell the other ranks whether this one failed inside a call; raise its error, or that of another rank."""
    if error is not None:
        with contextlib.suppress(RuntimeError):  # that others failed, too, is not what is to be said
            _exchange(mesh, FAILS, [])
        raise error
    ready(mesh)


@contextlib.contextmanager
def reporting(mesh):
    """A context that reports refused arguments to the other ranks of a mesh, which wait; mesh None: nobody waits."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError):
        if mesh is not None:
            with contextlib.suppress(RuntimeError):  # one that has ended is not what is to be said
                _exchange(mesh, REFUSES, [])
        raise


def _exchange(mesh, does, numbers):
    """The integers of each rank, in their order; raises an error if ranks do not do the same."""
    sent = torch.tensor([does, len(numbers), *numbers, *[0] * (LENGTH - 2 - len(numbers))])
    everybody = _gather(mesh, sent)
    for rank, (theirs, count, *_) in enumerate(everybody):
        other, here = global_rank(mesh, rank), distributed.get_rank()
        if theirs == REFUSES != does:
            raise ValueError(f"rank {other} has refused its arguments, and says why; rank {here} computes nothing")
        if (theirs, count) != (does, len(numbers)) and does != REFUSES:
            raise RuntimeError(
                f"rank {other} {DOES[theirs]} where rank {here} {DOES[does]}, expected the same calls, forward and "
                "backward, in the same order on all ranks"
            )
    return [numbers[:count] for _, count, *numbers in everybody]


def _gather(mesh, sent):
    """The numbers of each rank, in their order."""
    group, here = mesh.get_group(), mesh.get_local_rank()
    if mesh.device_type != "cpu":
        found = [torch.empty_like(sent, device=mesh.device_type) for _ in range(mesh.size())]
        distributed.all_gather(found, sent.to(mesh.device_type), group=group)
        return [one.tolist() for one in found]
    # One by one, so that it is known who does not answer.
    found = [torch.empty_like(sent) for _ in range(mesh.size())]
    found[here] = sent
    waiting = []
    for rank in range(mesh.size()):
        if rank != here:
            other = global_rank(mesh, rank)
            with answering(other):
                waiting.append((other, distributed.irecv(found[rank], other, group=group, tag=TAG)))
                waiting.append((other, distributed.isend(sent, other, group=group, tag=TAG)))
    for other, work in waiting:
        with answering(other):
            work.wait()
    return [one.tolist() for one in found]


def ready(mesh):
    """Wait until all ranks of a mesh are here; else raise RuntimeError, which names a rank that does not come.

    A collective that a rank never joins would end, too, but its error names no rank. Engines other than the processor's
    wait by themselves.
    """
    if mesh.device_type == "cpu" and not torch.compiler.is_compiling():
        _exchange(mesh, MEETS, [])


@contextlib.contextmanager
def answering(rank):
    """A context that names the rank which does not answer in the errors raised inside."""
    try:
        yield
    except RuntimeError as error:
        here, first = distributed.get_rank(), _first_missing(rank)
        if first not in (rank, here):
            raise RuntimeError(
                f"rank {first} does not answer; it may have ended. Rank {rank}, which waited for it, does not answer "
                f"rank {here}: {error}"
            ) from error
        raise RuntimeError(f"rank {rank} does not answer rank {here}; it may have ended: {error}") from error


def _first_missing(rank):
    """The rank that any rank has missed first: the one missed here may only wait for it.

    It is in the ranks' store, which PyTorch has under a private name; without a store, it is the one missed here.
    """
    with contextlib.suppress(Exception):  # it may have ended, too
        return int(distributed.distributed_c10d._get_default_store().compare_set("mha/missed", "", str(rank)))
    return rank


def global_rank(mesh, rank):
    """The global rank, among all processes, of a rank in a mesh."""
    return distributed.get_global_rank(mesh.get_group(), rank)


def _digest(value):
    text = repr((value.shape, value.tolist()) if isinstance(value, np.ndarray) else value)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _brief(value):
    text = str(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 60 else text[:57] + "..."


# 2. Exchanges, each with that of the gradients


class _Transfer(torch.autograd.Function):
    """A linear function of arrays by which ranks exchange numbers, and the one that their gradients take back."""

    @staticmethod
    def forward(ctx, there, back, *arrays):
        ctx.back = back
        return there(*arrays)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        return None, None, *ctx.back(*gradients)


transfer = _Transfer.apply


def share(X, mesh):
    """X, the same on all ranks of a mesh, with the sum over ranks for its gradient. None stays None."""
    if not (torch.is_tensor(X) and X.is_floating_point()):
        return X
    return transfer(lambda X: X.view_as(X), lambda gradient: (all_reduce(gradient, mesh),), X)


def sum_ranks(X, mesh):
    """The sum of X over the ranks of a mesh, on each of them; all use it in the same way, and have its gradient."""
    return transfer(lambda X: all_reduce(X, mesh), lambda gradient: (gradient,), X)


def join_ranks(X, axis, mesh):
    """The arrays of a mesh's ranks, equal in size, side by side along an axis; all use them in the same way."""
    size, first = X.shape[axis], mesh.get_local_rank() * X.shape[axis]
    return transfer(
        lambda X: torch.cat(all_gather(X, mesh), axis), lambda gradient: (gradient.narrow(axis, first, size),), X
    )


def all_reduce(X, mesh, operation=distributed.ReduceOp.SUM):
    """The sum of X over the ranks of a mesh, or another operation, without gradients."""
    ready(mesh)
    total = X.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, operation, group=mesh.get_group())
    return total


def all_gather(X, mesh):
    """The arrays of a mesh's ranks, equal in size, without gradients."""
    found = [torch.empty(X.shape, dtype=X.dtype, device=X.device) for _ in range(mesh.size())]
    ready(mesh)
    distributed.all_gather(found, X.contiguous(), group=mesh.get_group())
    return found


# 3. Randomness


@contextlib.contextmanager
def own_randomness(rank, place):
    """A context in which PyTorch draws other random numbers on each rank, and after which all draw alike again.

    rank: any number that only this rank has; place: the device that draws.
    """
    seed = int(torch.randint(2**62, ()))
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        torch.manual_seed(seed + rank)
        yield
