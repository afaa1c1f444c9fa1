"""The tests' questions to a framework, the same to each: `adapters.of("torch")`. A framework is imported on use."""

import contextlib
import copy
import functools
import importlib

import mha
from mha.core import dispatch

# Backends that compile each kind of call, which takes seconds, and the others.
COMPILED = tuple(name for name, compiles in dispatch.facts("COMPILES", False).items() if compiles)
SLOW = *COMPILED, "mxnet", "mlx"  # on which a case in small pieces takes a quarter of a second and more
EAGER = tuple(name for name in dispatch.FRAMEWORKS if name not in COMPILED)
FRAMEWORKS = tuple(name for name in dispatch.FRAMEWORKS if name != "numpy")
NAMES = ", ".join(dispatch.FRAMEWORKS)  # as errors list them


def of_arrays(backend):
    """The backend whose arrays a backend gives: NumPy, of one that has none of its own."""
    return backend if dispatch.FRAMEWORKS[backend].arrays else "numpy"


def lacks(backend, what):
    """Whether a backend cannot do something, as the facts of its folder say."""
    assert what in dispatch.LACKING
    return what in dispatch.FRAMEWORKS[backend].lacks


@functools.cache
def of(backend):
    """The adapter of a backend's framework, whose module is imported only now."""
    return importlib.import_module(f"adapters.{backend}").Adapter(backend)


class Adapter:
    """One framework as its users know it. What is here holds for NumPy, and for those that say nothing else.

    attention: an `mha.MultiHeadAttention` on this backend; layer: its `attention.layer`; arrays: the framework's own.
    """

    # The dtypes that lengths may have.
    integers = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "uint64")
    # Whether new weights replace a layer's as a whole; elsewhere one after another, where a call may be reading them.
    replaces_weights = False
    # Whether a call compiles for each new combination of sizes, dtype and options, which takes seconds.
    compiles_each_kind = False
    # What the book calls the switch of the biases.
    bias = "bias"
    # What `mha bench` measures beside the layer, and beside one with groups: the classes that have them.
    beside: tuple[str, ...] = ()
    beside_groups: tuple[str, ...] = ()
    beside_segments: tuple[str, ...] = ()
    # How some of what `mha page` measures begins; a new release may well answer otherwise, and then the page is right.
    measures: tuple[tuple[str, str], ...] = ()
    # Whether dot products are pooled by the framework's own kernel where nothing else is asked for.
    by_kernel = False
    # Code that a process runs before several threads make their first calls.
    before_threads = ""

    def __init__(self, backend):
        self.backend = backend

    def own(self, *arrays):
        """NumPy arrays as the framework's own, in a list; None stays None."""
        return [None if X is None else mha.tensor(X, backend=self.backend) for X in arrays]

    def convert(self, X):
        """A NumPy array as the framework's own, as it makes it without `mha`; its own error for a dtype it lacks."""
        raise NotImplementedError

    def not_dense(self, X):
        """Arrays of the framework's that are made of X, and are not dense or do not lie in memory."""
        return []

    # Random numbers

    def seed(self, seed):
        """Seed the framework's global random numbers; NumPy's and JAX's layers have a seed of their own instead."""

    # Calls

    def call(self, attention, *inputs):
        """Call `attention.layer`, in any thread, as code does that has never heard of `mha`."""
        return attention.layer(*inputs)

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

    def weights_of_model(self, attention, X):
        """How many weights a model of the framework has, which has `attention` alone and is called with X."""
        raise NotImplementedError

    # Gradients and training

    def pull_back(self, function, X, cotangent=None):
        """function(X), and the gradient by X of the sum of function(X) * cotangent; without one, of half its square."""
        raise NotImplementedError

    def gradient_by_kernel(self, attention, *inputs, cotangent):
        """The gradient of the sum of attention(*inputs) * cotangent by the kernel of W_q, (query_size, H*d)."""
        raise NotImplementedError

    def train(self, attention, inputs, target, steps, rate):
        """Gradient descent on the mean squared error, by the framework's loop; returns the loss before each step."""
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

    def forget_programs(self):
        """Drop what was compiled for pieces of another size, where a program does not tell."""

    def precisions(self):
        """Contexts that change the framework's own state of precision; to be entered one after another."""
        return []

    def changed(self, layer):
        """The layer after its user has changed it so that it no longer fits its configuration."""
        raise NotImplementedError

    # Names

    def named_arrays(self, layer):
        """The parameters of a layer, by the framework's names or in its own mappings."""
        raise NotImplementedError

    def numbers(self, layer):
        """The parameters of a layer as NumPy arrays, in a list."""
        return [mha.to_numpy(X) for X in self.named_arrays(layer).values() if X is not None]

    # The book's layers and poolings; d2l: the module of their names

    def start(self, layer, *inputs):
        """A layer or pooling with initial weights, ready to be called with such inputs."""
        self.call_book(layer, *inputs)
        return layer

    def call_book(self, layer, *inputs, training=False):
        """The output and the attention weights of one that is started."""
        raise NotImplementedError

    def call_without_start(self, layer, *inputs):
        """Call one that is not started: what does not fit is found before any weights are asked for."""
        return layer(*inputs)

    def call_book_in_threads(self, layer):
        """A function of the inputs that any thread may call: output and attention weights."""
        return functools.partial(self.call_book, layer)

    def compile_book(self, layer):
        """A compiled function of the inputs: output and attention weights."""
        raise NotImplementedError

    def make_again(self, d2l, attention, folder):
        """A layer made of `d2l.MultiHeadAttention(num_hiddens, num_heads, dropout)`, by what the framework saves."""
        raise NotImplementedError

    def copies(self, layer, folder):
        """Copies of a layer, in each of the ways that the framework has."""
        yield copy.deepcopy(layer)

    def kernel(self, pooling, name):
        """A kernel of an additive pooling, (in, out)."""
        raise NotImplementedError

    def normal(self, d2l, *shape):
        """Random numbers of the book's helper, in the framework's order of arguments."""
        return d2l.normal(0, 1, shape)


def attention_weights(layer):
    """The attention weights that a layer or pooling of the book's has kept for this thread."""
    return getattr(layer, "attention", layer).attention_weights


@contextlib.contextmanager
def reverting(change, state, usual):
    """The framework in another state, and then as usual."""
    change(state)
    try:
        yield
    finally:
        change(usual)
