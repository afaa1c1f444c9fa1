"""What the tests ask of a framework, the same of each: `adapters.of("torch")`. A framework is imported on use."""

import contextlib
import functools
import importlib

import mha


@functools.cache
def of(backend):
    """The adapter of a backend's framework, whose module is imported only now."""
    return importlib.import_module(f"adapters.{backend}").Adapter(backend)


class Adapter:
    """One framework as its users know it. What is here holds for NumPy, and for each framework that says nothing else.

    attention: an `mha.MultiHeadAttention` on this backend; layer: its `attention.layer`. Arrays are the framework's own.
    """

    # The dtypes that lengths may have.
    integers = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "uint64")

    def __init__(self, backend):
        self.backend = backend

    def own(self, *arrays):
        """NumPy arrays as the framework's own, in a list; None stays None."""
        return [None if X is None else mha.tensor(X, backend=self.backend) for X in arrays]

    # Random numbers

    def seed(self, seed):
        """Seed the framework's global random numbers; NumPy's and JAX' layers have a seed of their own instead."""

    # Calls

    def compile(self, layer):
        """The layer as a compiled function of queries, keys, values and lengths."""
        raise NotImplementedError

    def compile_with_gradient(self, attention, callee):
        """A compiled function of queries, keys, values, lengths, mask and causal, which may be None or False.

        callee: `attention.layer`, or `attention` itself. Returned are the output and the gradient by the queries of
        half the sum of its squares.
        """
        raise NotImplementedError

    def map(self, function, *arrays):
        """The function of one sample's arrays, mapped over the first axis of all arrays by the framework."""
        raise NotImplementedError

    # Gradients and training

    def pull_back(self, function, X, cotangent=None):
        """function(X), and the gradient by X of the sum of function(X) * cotangent; without one, of half its square."""
        raise NotImplementedError

    def gradient_by_kernel(self, attention, *inputs, cotangent):
        """The gradient of the sum of attention(*inputs) * cotangent by the kernel of W_q, (query_size, H*d)."""
        raise NotImplementedError

    def train(self, attention, inputs, target, steps, rate):
        """Steps of gradient descent on the mean squared error, by the framework's loop; returns the loss before each."""
        raise NotImplementedError

    def save(self, attention, other, folder):
        """Write the layer with the framework's saver, and read it into another one."""
        raise NotImplementedError

    # State

    def training(self, layer):
        """A context in which the framework is training; at its end it must still be."""
        raise NotImplementedError

    def evaluate(self, layer):
        """Tell the layer that it is not training, where it knows of that outside a call."""

    def gather(self, layer, number):
        """Fill the gradients that the parameters keep with a number; returns a function that reads them."""
        raise NotImplementedError

    def freeze(self, layer):
        """Let the layer's parameters have no gradients, where they can."""

    def without_gradients(self):
        """Contexts in which the framework records no gradients."""
        return []

    def precisions(self):
        """Contexts that change the framework's own state of precision; to be entered one after another."""
        return []

    # Names

    def named_arrays(self, layer):
        """The parameters of a layer, by the framework's names or in its own mappings."""
        raise NotImplementedError


@contextlib.contextmanager
def reverting(change, state, usual):
    """The framework in another state, and then as usual."""
    change(state)
    try:
        yield
    finally:
        change(usual)
