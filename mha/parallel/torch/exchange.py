"""Move rows between ranks, with their gradients: all to all, or from each to all; and combine flags."""

import torch
from torch import distributed

from mha.parallel.rows import common

from .ranks import all_gather, all_reduce, ready, transfer


def to_heads(X, heads, rows, mesh):
    """Give each rank all rows of some heads: X (B, H, rows here, ...) -> (B, heads here, all rows, ...).

    heads, rows: how many each rank has.
    """
    here, sizes = mesh.get_local_rank(), X.shape
    shapes = [(sizes[0], heads[here], count, *sizes[3:]) for count in rows]
    return torch.cat(_exchange_pieces(mesh, shapes, X.split(heads, 1)), 2)


def to_rows(X, heads, rows, mesh):
    """Undo `to_heads`: X (B, heads here, all rows, ...) -> (B, H, rows here, ...)."""
    here, sizes = mesh.get_local_rank(), X.shape
    shapes = [(sizes[0], count, rows[here], *sizes[3:]) for count in heads]
    return torch.cat(_exchange_pieces(mesh, shapes, X.split(rows, 2)), 1)


def exchange_rows(arrays, axis, places, mesh):
    """Exchange rows of arrays along an axis between ranks, all at once; the arrays have the same dtype.

    places: for each array, the rows of each rank in the whole before and after, as `mha.parallel.rows` has them.
    """
    here, pieces, shapes, own = mesh.get_local_rank(), [], [], []
    for other in range(mesh.size()):  # whose pieces of all arrays follow each other
        for X, (before, after) in zip(arrays, places, strict=True):
            own.append(common(after[here], before[other]))
            count = sum(one.stop - one.start for one in own[-1])
            pieces.append(_rows_of(X, axis, common(before[here], after[other])))
            shapes.append((*X.shape[:axis], count, *X.shape[axis + 1 :]))
    found, size = _exchange_pieces(mesh, shapes, pieces), len(arrays)
    return [_in_order(found[number::size], own[number::size], axis) for number in range(size)]


def _in_order(pieces, places, axis):
    """Put the pieces of all ranks into one array; places: for each piece, the slices of its rows in that array."""
    parts = []
    for part, some in zip(pieces, places, strict=True):
        counts = [one.stop - one.start for one in some]
        # One without rows, too, since all ranks meet in the backward pass.
        parts += zip((one.start for one in some), part.split(counts, axis), strict=True) if some else [(0, part)]
    parts.sort(key=lambda both: both[0])
    return torch.cat([part for _, part in parts], axis)


def _rows_of(X, axis, rows):
    """Some slices of the rows along an axis, one after another."""
    parts = [X.narrow(axis, one.start, one.stop - one.start) for one in rows]
    return torch.cat(parts, axis) if len(parts) > 1 else (*parts, X.narrow(axis, 0, 0))[0]


def gather_rows(X, axis, rows, mesh):
    """The rows of all ranks along an axis; X: those here. The gradient of a row goes back to its own rank."""

    def gather(X):
        last = X.movedim(axis, 0)
        padded = last.new_zeros((max(rows), *last.shape[1:]), dtype=_send_dtype(X.dtype))  # ranks send as much each
        padded[: len(last)] = last
        whole = torch.cat([part[:count] for part, count in zip(all_gather(padded, mesh), rows, strict=True)])
        return whole.to(X.dtype).movedim(0, axis)

    def back(gradient):
        pieces = gradient.split(rows, axis)
        own = pieces[mesh.get_local_rank()].shape
        return (torch.stack(_all_to_all(mesh, [own] * len(pieces), pieces)).sum(0),)

    return transfer(gather, back, X)


def anywhere(flags, mesh):
    """Combine flags of the same shape over ranks: true where they are on any rank."""
    return all_reduce(flags.to(torch.uint8), mesh, distributed.ReduceOp.MAX).bool()


def _exchange_pieces(mesh, shapes, pieces):
    """As many pieces from each rank as to each, of these shapes."""
    own = [piece.shape for piece in pieces]
    return transfer(
        lambda *pieces: tuple(_all_to_all(mesh, shapes, pieces)),
        lambda *gradients: _all_to_all(mesh, own, gradients),
        *pieces,
    )


def _all_to_all(mesh, shapes, pieces):
    """Send pieces to the ranks, equally many to each, and return theirs, of these shapes, in the order of the ranks."""
    dtype, counts = pieces[0].dtype, [piece.numel() for piece in pieces]
    sent = torch.empty(sum(counts), dtype=_send_dtype(dtype), device=pieces[0].device)
    for part, piece in zip(sent.split(counts), pieces, strict=True):
        part.view(piece.shape).copy_(piece)
    sizes = [torch.Size(shape).numel() for shape in shapes]
    found = sent.new_empty(sum(sizes))
    ready(mesh)
    each = len(pieces) // mesh.size()
    of_ranks = ([sum(some[first : first + each]) for first in range(0, len(some), each)] for some in (sizes, counts))
    distributed.all_to_all_single(found, sent, *of_ranks, group=mesh.get_group())
    return [part.view(shape).to(dtype) for part, shape in zip(found.split(sizes), shapes, strict=True)]


def _send_dtype(dtype):
    """The dtype in which an array is sent: engines know no booleans."""
    return torch.uint8 if dtype == torch.bool else dtype
