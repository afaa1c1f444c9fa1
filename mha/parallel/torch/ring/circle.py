"""Send keys and values round the ranks, and say which pieces of queries meet which of keys."""

import torch
from torch import distributed

from mha.core.engine.visible_range import meets
from mha.parallel.rows import as_here

from ..ranks import answering, global_rank, ready, settle_errors


class Circle:
    """The passes of one call round the ranks of a mesh; mesh None: this rank has all keys."""

    def __init__(self, attention, mesh, places, num_heads, call, names):
        self.attention, self.mesh, self.num_heads, self.call, self.names = attention, mesh, num_heads, call, names
        self.queries, self.keys = places
        self.size, self.here = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank())

    def meetings(self, k, owner, score_bias):
        """Pieces of the rows here and of the owner's keys that may meet, their first keys in the whole, and calls."""
        whole = self.call._replace(score_bias=score_bias)
        for rows, first_row in as_here(self.queries[self.here]):
            for columns, first in as_here(self.keys[owner]):
                size = columns.stop - columns.start
                call = move_offset(whole, first_row - rows.start).part(queries=rows, keys=slice(first, first + size))
                if len(k) and rows.start < rows.stop and size and meets(call, rows.stop - rows.start, size):
                    yield rows, columns, first, call

    def go_round(self, own, use, beside=None):
        """Call use(owner, *arrays) with the keys and values of each rank, this one's first, then those before it.

        The next ones travel while these are used. beside: a list of arrays of the owner's size that travel after their
        use. A rank that fails still sends on what comes, so that no other waits for ever, and raises its error then.
        """
        if self.size == 1:
            use(self.here, *own)
            return
        error = None
        ready(self.mesh)
        arrays = [X.contiguous() for X in own]
        for step in range(self.size):
            owner = (self.here - step) % self.size
            coming, wait = self.send(arrays, (owner - 1) % self.size) if step < self.size - 1 else (None, None)
            try:
                if error is None:
                    use(owner, *arrays)
            except Exception as failure:
                if self.mesh.device_type != "cpu":  # where ranks do not meet again
                    raise
                error = failure
            if wait is not None:
                wait()
            arrays = coming  # while as much is sent
            if beside is not None:
                beside[:] = self.pass_on(beside, owner)
        settle_errors(self.mesh, error)

    def pass_on(self, arrays, owner):
        """Send arrays of the owner's size to the next rank, and return those of the rank before."""
        coming, wait = self.send([X.contiguous() for X in arrays], (owner - 1) % self.size)
        wait()
        return coming

    def send(self, arrays, owner):
        """Start to send arrays to the next rank; return room for this owner's, and a function that waits for them."""
        group, count = self.mesh.get_group(), sum(piece.stop - piece.start for piece in self.keys[owner])
        after, before = (global_rank(self.mesh, (self.here + step) % self.size) for step in (1, -1))
        coming = [X.new_empty((len(X), count, X.shape[2])) for X in arrays]
        operations = [distributed.P2POp(distributed.isend, X, after, group) for X in arrays]
        operations += [distributed.P2POp(distributed.irecv, X, before, group) for X in coming]
        with answering(before):
            works = distributed.batch_isend_irecv(operations)

        def wait():
            # One for each, or one for all.
            for number, work in enumerate(works):
                with answering(operations[number].peer):
                    work.wait()

        return coming, wait


def move_offset(call, first):
    """The call with its offset moved to another first query."""
    known = {name: X + first if name == "offset" else X for name, X in (call.plan.known or {}).items()}
    return call._replace(offset=call.offset + first).with_plan(known=known)


def later(rows, first):
    """A slice moved by a number of rows."""
    return slice(rows.start + first, rows.stop + first)


def zeros(X, dtype):
    """Zeros of the shape of X in another dtype, to sum its gradient."""
    return torch.zeros(X.shape, dtype=dtype, device=X.device)
