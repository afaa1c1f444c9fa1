"""JAX on a GPU beside float64 on the processor: every option, cuDNN's kernel at all sizes, forward and gradients."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import jax
import placed
import pytest
from jax import numpy as jnp

import mha
from mha import parity
from mha.core.call import note_kernels

pytestmark = pytest.mark.backends("jax")
NAMES = tuple(placed.options(64))
BY_CUDNN = ("none", "order", "lengths", "window, order", "lengths, window, order", "gates of heads", "norm")
SIZES = (63, 64, 65, 66, 70, 127, 128, 129, 192, 704)


def differences(case, dtype):
    """What differs from the oracle in output and gradients of a case, as text; "" if nothing does."""
    *inputs, cotangent = case.inputs(dtype)
    attention, oracle = case.layer("jax", dtype), case.layer("numpy", dtype)
    call = case.call(dtype)
    # Products in float32 are TF32 by default, which the comparison would find.
    wide = jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()
    exact = jax.default_matmul_precision("highest") if dtype == "float32" else contextlib.nullcontext()
    with wide, exact:
        output, pull_back = attention.vjp(*inputs, **call)
        found = {"output": output} | {f"gradient.{name}": X for name, X in pull_back(cotangent).items()}
        alone = attention(*inputs, **call)
    known = {name: X for name, X in call.items() if X is not None}
    for theirs in (found, {"output": alone}):
        report = parity.compare(oracle, theirs, *inputs, cotangent=cotangent, empty_rows=True, **known)
        if not report:
            return str(report)
    return ""


def check(cases, dtype):
    """Compare many cases with the oracle; to compile them takes most of the time, and is done at once."""
    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(lambda case: differences(case, dtype), cases)]
    wrong = [f"{case.name}: {said}" for case, said in zip(cases, found, strict=True) if said]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_option(dtype):
    check([placed.case(name, 64, framework="jax") for name in NAMES], dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_calls_of_all_sizes(dtype):
    check(
        [placed.case(name, size, framework="jax") for name in ("lengths, window, order", "all") for size in SIZES],
        dtype,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_is_the_one_that_is_described(name):
    case = placed.case(name, 64, framework="jax")
    with note_kernels() as kernels:
        case.layer("jax", "bfloat16")(*case.inputs("bfloat16")[:3], **case.call("bfloat16"))
    assert kernels == {"cuDNN" if name in BY_CUDNN else "products"}


def test_large_scores():
    """Of queries whose sum of exponentials is far below 1, gradients were NaN in some versions of cuDNN."""
    for size in (64, 192):
        case = placed.case("lengths", size, framework="jax", scale=6.0)
        assert not differences(case, "bfloat16")


def test_nothing_waits_for_the_gpu():
    case = placed.case("lengths", 64, framework="jax")
    attention, call = case.layer("jax", "bfloat16"), case.call("bfloat16")
    X = [jnp.asarray(X) for X in case.inputs("bfloat16")[:3]]
    attention(*X, **call)
    with jax.transfer_guard_device_to_host("disallow"):
        attention(*X, **call).block_until_ready()


def test_a_token_in_a_cache():
    attention = mha.MultiHeadAttention(96, 6, num_key_value_heads=3, seed=0, backend="jax", dtype="bfloat16")
    X = jax.random.normal(jax.random.key(0), (2, 129, 96), jnp.bfloat16)
    whole, cache = attention(X, X, X, causal=True), attention.cache(2, 160)
    _, cache = attention(*3 * [X[:, :-4]], cache=cache, causal=True)
    for place in range(125, 129):
        token, cache = attention(*3 * [X[:, place : place + 1]], cache=cache, causal=True)
        assert jnp.allclose(token, whole[:, place : place + 1], rtol=2e-2, atol=2e-2)
