"""Threads that call at once get the bits of a serial run, on every backend; and each keeps its own weights."""

import concurrent.futures
import contextlib
import itertools
import random
import sys
import threading
import time
from pathlib import Path

import adapters
import numpy as np
import pytest
from calls import B, H, K, Q, bits, draw, make

import mha
from mha.core import dispatch

LENGTHS = np.array([3, 2], "int32")
MASK = np.random.default_rng(1).random((B, H, Q, K)) < 0.6
THREADS, ROUNDS = 8, 7
OURS = str(Path(mha.__file__).parent)
LAYERS = ("one", "each its own")
OPTIONS = {"plain": {}, "other": {"bias": True, "pooling": "additive", "dtype": "float64"}}


@pytest.fixture(scope="module")
def threads():
    """The threads of all tests: MXNet itself never gives back the 5 MiB that a thread which has called it takes.

    Executors of one thread each: one of many, in Python 3.12 and 3.13, may count a thread as idle that is not, and then
    start one too few for works that wait for each other.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(concurrent.futures.ThreadPoolExecutor(1)) for _ in range(THREADS)]


@pytest.fixture
def serial(threads):
    """A function that calls functions one after another, in one of the same threads.

    Not in the main one: once MXNet is imported, that has one OpenMP thread for PyTorch and the others have more, on
    which PyTorch's last bits depend.
    """
    return lambda works: [threads[0].submit(work).result() for work in works]


def let_others_go_on(frame, event, argument):
    """A trace function: another thread may go on before every line of ours, where a race would be."""
    if not frame.f_code.co_filename.startswith(OURS):
        return None
    time.sleep(0)
    return let_others_go_on


@pytest.fixture
def at_once(threads):
    """A function that calls functions in threads of their own, again and again, each time all at once.

    It takes one function for each thread and `times`, and returns, for each thread, what its function returned.
    """

    def run(works, times=ROUNDS):
        barrier = threading.Barrier(len(works), timeout=300)  # of seconds: others may use the machine too

        def repeat(work):
            results = []
            try:
                for turn in range(times):
                    sys.settrace(None if turn % 25 else let_others_go_on)  # each time would take minutes
                    barrier.wait()
                    results.append(work())
            except BaseException:
                barrier.abort()  # the others need not wait
                raise
            finally:
                sys.settrace(None)
            return results

        futures = [thread.submit(repeat, work) for thread, work in zip(threads, works, strict=True)]
        errors = [error for future in futures if (error := future.exception())]
        if errors:  # one is the cause; the others only waited in vain
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        return [future.result() for future in futures]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield run
    sys.setswitchinterval(interval)


def native(attention, *arrays):
    """Call the framework's own layer, as code that has never heard of `mha` does."""
    with dispatch.load(attention.backend).context(attention.config.dtype):
        arrays = adapters.of(attention.backend).own(*arrays)
    return adapters.of(attention.backend).call(attention, *arrays)


CALLS = {
    "forward": lambda attention, *arrays: attention(*arrays),
    "lengths": lambda attention, *arrays: attention(*arrays, LENGTHS),
    "weights too": lambda attention, *arrays: attention(*arrays, LENGTHS, return_weights=True),
    "mask": lambda attention, *arrays: attention(*arrays, mask=MASK, return_weights=True),
    "causal": lambda attention, *arrays: attention(*arrays, causal=True, return_weights=True),
    "gradients": lambda attention, *arrays: attention.gradients(*arrays, LENGTHS),
    "trace": lambda attention, *arrays: attention.trace(*arrays, LENGTHS),
    "weights": lambda attention, *arrays: attention.weights,
    "native": lambda attention, *arrays: native(attention, *arrays, LENGTHS),
    "another": lambda attention, *arrays: make(attention.backend, seed=5).weights,
}


@pytest.mark.long(*adapters.COMPILED, "mxnet")
@pytest.mark.parametrize("layers", LAYERS)
def test_threads_get_the_bits_of_a_serial_run(backend, rng, at_once, serial, layers):
    names = ["plain"] * THREADS if layers == "one" else list(OPTIONS) * (THREADS // len(OPTIONS))
    attentions = [make(backend, seed=seed, **OPTIONS[name]) for seed, name in enumerate(names)]
    attentions = attentions[:1] * THREADS if layers == "one" else attentions
    inputs = [draw(rng, attention.config.dtype) for attention in attentions]

    def work(thread):
        """All kinds of calls, in an order of this thread's own, which changes every time."""
        order = random.Random(thread)

        def call():
            names = order.sample(list(CALLS), len(CALLS))
            return {name: bits(CALLS[name](attentions[thread], *inputs[thread])) for name in names}

        return call

    works = [work(thread) for thread in range(THREADS)]
    one_by_one = serial(works)
    assert len({str(results["forward"]) for results in one_by_one}) == THREADS  # or a mix-up would not be seen
    for all_results, expected in zip(at_once(works), one_by_one, strict=True):
        for results in all_results:
            assert [name for name, result in results.items() if result != expected[name]] == []


# Compiled, once before the threads start: frameworks compile one at a time anyway.


@pytest.mark.needs("a compiler")
def test_threads_share_a_compiled_layer(backend, rng, at_once, serial):
    compiled = adapters.of(backend).compile(make(backend).layer)
    inputs = [adapters.of(backend).own(*draw(rng), LENGTHS) for _ in range(THREADS)]
    works = [lambda X=X: bits(compiled(*X)) for X in inputs]
    one_by_one = serial(works)
    assert at_once(works) == [[expected] * ROUNDS for expected in one_by_one]


# Weights are frozen where a framework can do so, and thawed for the gradients alone.


def test_threads_share_the_gradients_of_a_frozen_layer(backend, rng, at_once, serial):
    attention, inputs = make(backend), [draw(rng) for _ in range(THREADS)]
    works = [lambda X=X: bits(attention.gradients(*X)) for X in inputs]
    one_by_one = serial(works)
    adapters.of(backend).freeze(attention.layer)
    assert at_once(works, 3 * ROUNDS) == [[expected] * 3 * ROUNDS for expected in one_by_one]


# Weights assigned while others call. Flax replaces a layer's weights as a whole, and a call has taken the old or the
# new; all others write them one after another into the memory from which a call may be reading.


def test_weights_assigned_while_others_call(backend, rng, at_once, serial):
    attention, arrays = make(backend), draw(rng)
    weights = [attention.weights, make(backend, seed=1).weights]
    whole = []
    for each in weights:
        attention.weights = each
        whole += serial([lambda: bits(attention(*arrays))])

    turns = itertools.cycle(weights)

    def assign():
        attention.weights = next(turns)

    def call():
        return bits(attention(*arrays)), bits(attention.weights)

    results = at_once([assign] + [call] * (THREADS - 1), 40)[1:]
    if adapters.of(backend).replaces_weights:
        for output, held in itertools.chain(*results):
            assert output in whole
            assert held in map(bits, weights)
    assert bits(attention.weights) == bits(weights[1])
    assert at_once([call] * THREADS, 2) == [[(whole[1], bits(weights[1]))] * 2] * THREADS


# The first calls of a process import the framework.

FIRST_CALLS = """
import concurrent.futures, sys, threading, time
import numpy as np
import mha

sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8, timeout=60)

def call(number):
    barrier.wait()
    time.sleep(0.02 * (number // 2) ** 2)  # some begin together, some while another is importing
    X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")
    attention = mha.MultiHeadAttention(12, 3, seed=0)
    return attention(X, X, X, [3, 2]).tobytes(), attention.gradients(X, X, X)["queries"].tobytes()

with concurrent.futures.ThreadPoolExecutor(8) as pool:
    results = list(pool.map(call, range(8)))
print(len(results), len(set(results)))
"""


@pytest.mark.long("tensorflow", "jax")  # whose import takes seconds
def test_threads_make_the_first_calls_of_a_process(backend, python):
    assert python(adapters.of(backend).before_threads + FIRST_CALLS, MHA_BACKEND=backend).split() == ["8", "1"]


# The book's layers and poolings keep the attention weights of each thread's own call; those of JAX return them.

BOOK = {
    "layer": lambda d2l: d2l.MultiHeadAttention(H * 4, H, 0.0),
    "pooling": lambda d2l: d2l.DotProductAttention(0.0),
}


@pytest.mark.parametrize("kind", [pytest.param("layer", marks=pytest.mark.long("tensorflow")), "pooling"])
def test_threads_keep_their_own_attention_weights(backend, d2l, rng, at_once, serial, kind):
    many, framework = (
        [rng.normal(size=(3, 2, 5, H * 4)).astype("float32") for _ in range(THREADS)],
        adapters.of(backend),
    )
    inputs = [framework.own(*arrays, LENGTHS) for arrays in many]
    call = framework.call_book_in_threads(framework.start(BOOK[kind](d2l), *inputs[0]))
    works = [lambda X=X: bits(call(*X)) for X in inputs]
    one_by_one = serial(works)
    assert len(set(one_by_one)) == THREADS
    assert at_once(works, 20) == [[expected] * 20 for expected in one_by_one]
