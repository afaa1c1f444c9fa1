"""Gradients of a pooling in blocks, which keep nothing but its inputs: each block is computed once more for them."""

import threading

from mxnet import autograd, np

from mha.core.engine import blocks

from ..arrays import context
from ..weights import data

again = threading.Lock()


class _Drawn(threading.local):
    seed = None


drawn = _Drawn()  # what the dropout of the block that is being computed is drawn from


class Recomputed(autograd.Function):
    """A pooling block by block, whose backward pass keeps nothing but the inputs, and computes the rest again."""

    def __init__(self, pool_block, pieces, inputs, parameters, seed):
        super().__init__()
        self.pool_block, self.pieces, self.seed = pool_block, pieces, seed
        self.inputs, self.parameters = inputs, parameters

    @classmethod
    def call(cls, pooling, pool_block, pieces, training, *inputs):
        """pool_block(block, seen, *inputs) piece by piece, with gradients also by the pooling's weights.

        inputs: queries (B*H, Q, d), keys (B*G, K, d), values (B*G, K, dv), and floats of four axes.
        """
        parameters = [data(X) for X in pooling.collect_params().values() if X.grad_req != "null"]
        seed = int(np.random.randint(0, 2**31 - 1).item()) if training and pooling.dropout else None
        pool = cls(pool_block, pieces, [X.detach() for X in inputs], parameters, seed)
        if not autograd.is_recording():
            return pool.forward()
        # As one: where the gradient by the first input is not asked for, MXNet leaves out those by all the others.
        return pool(np.concatenate([X.reshape(-1) for X in (*inputs, *parameters)]))  # (B*H, Q, dv)

    def forward(self, packed=None):
        """The pooled values (B*H, Q, dv); packed: the inputs and weights, of which no copy is to be kept."""
        pooled = []
        for block, seen in self.pieces:
            pooled.append(self._draw(block, seen, *self._cut(block, seen)))  # (B*H, block, dv)
            pooled[-1].wait_to_read()  # else MXNet makes room for many blocks at once
        return np.concatenate(pooled, 1)

    def backward(self, cotangent):
        """Gradients by the inputs and the weights, packed as they are, in another thread than the call's."""
        with again, context(None):
            own = isinstance(cotangent, np.ndarray)  # in MXNet 2.0; 1.9 asks for its older kind of array
            cotangent = cotangent.as_np_ndarray()
            found = [np.zeros_like(X) for X in (*self.inputs, *self.parameters)]
            for block, seen in self.pieces:
                inputs = self._cut(block, seen)
                for X in inputs:
                    X.attach_grad()
                with autograd.record():
                    result = self._draw(block, seen, *inputs)
                by_all = autograd.grad([result], [*inputs, *self.parameters], [cotangent[:, block]])
                cuts = [*blocks.places(block, seen, self.inputs[3:]), *[...] * len(self.parameters)]
                for total, cut, X in zip(found, cuts, by_all, strict=True):
                    total[cut] += X.as_np_ndarray()
                    total.wait_to_read()
            packed = np.concatenate([X.reshape(-1) for X in found])  # (numbers,)
            return packed if own else packed.as_nd_ndarray()

    def _cut(self, block, seen):
        """The parts of the inputs that one piece needs."""
        cuts = blocks.places(block, seen, self.inputs[3:])
        return [X[cut] for X, cut in zip(self.inputs, cuts, strict=True)]

    def _draw(self, block, seen, *inputs):
        drawn.seed = None if self.seed is None else self.seed + block.start
        try:
            return self.pool_block(block, seen, *inputs)
        finally:
            drawn.seed = None
