"""JAX on a GPU beside float64 on the processor: every option, the kernel that is chosen, forward and gradients."""

import contextlib

import jax
import placed
import pytest

from mha import parity

pytestmark = pytest.mark.backends("jax")
NAMES = tuple(placed.options(32))


def check(case, dtype):
    """Compare output and gradients of a case with the oracle: each array within what rounding explains."""
    *inputs, cotangent = case.inputs(dtype)
    attention, oracle = case.layer("jax", dtype), case.layer("numpy", dtype)
    call = case.call(dtype)
    # Products in float32 are TF32 by default, which is what the suite would find.
    exact = jax.default_matmul_precision("highest") if dtype == "float32" else contextlib.nullcontext()
    with exact:
        output, pull_back = attention.vjp(*inputs, **call)
        found = {"output": output} | {f"gradient.{name}": X for name, X in pull_back(cotangent).items()}
        alone = attention(*inputs, **call)
    known = {name: X for name, X in case.call(dtype).items() if X is not None}
    for theirs in (found, {"output": alone}):
        report = parity.compare(oracle, theirs, *inputs, cotangent=cotangent, empty_rows=True, **known)
        assert report, str(report)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_every_option(name, dtype):
    check(placed.case(name, 32, framework="jax"), dtype)


@pytest.mark.parametrize("size", [31, 63, 64, 65, 127, 128, 129, 704])
@pytest.mark.parametrize("name", ["lengths", "all"])
def test_sizes(name, size):
    check(placed.case(name, size, framework="jax"), "bfloat16")


def test_float16():
    for name in ("none", "order", "lengths", "window, order", "bias"):
        check(placed.case(name, 64, framework="jax"), "float16")
