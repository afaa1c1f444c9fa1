"""PyTorch on a GPU beside float64 on the processor: every option, dtype and kernel, forward and gradients."""

import time

import placed
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import mha
from mha import parity
from mha.backends.torch.engine import flexible, kernels

pytestmark = pytest.mark.backends("torch")
DTYPES = ("float32", "float64", "float16", "bfloat16")
SIZES = (31, 32, 33, 63, 64, 65, 127, 128, 129, 704)
NAMES = tuple(placed.options(31))
# What `flex_attention` takes: each is compiled, which takes seconds.
FLEXIBLE = (
    "lengths", "a length for each query", "offset", "offsets", "positions", "segments", "window", "window, order",
    "chunk", "cap", "sinks", "values of another width",
)  # fmt: skip


def check(case, dtype):
    """Compare a case with the oracle: each array within what rounding explains, and hidden ones exactly 0."""
    results = parity.check_case("torch", case, dtype)
    wrong = [result for result in results if not result.passed]
    assert not wrong
    assert len(results) >= 3


@pytest.fixture
def small(monkeypatch):
    """Let `flex_attention` take small calls, too; returns how many it took."""
    pool, taken = flexible.pool_flexibly, []

    def noting(*heads, **options):
        pooled = pool(*heads, **options)
        taken.append(pooled is not None)
        return pooled

    monkeypatch.setattr(flexible, "LEAST", 0)
    monkeypatch.setattr(flexible, "pool_flexibly", noting)
    return taken


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_option(name, dtype):
    check(placed.case(name, 65), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_all_options_together(size, dtype):
    check(placed.case("all", size), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["window", "mask"])
def test_rows_without_keys(name, size, dtype):
    check(placed.case(name, size), dtype)


@pytest.mark.parametrize("name", ["lengths", "offsets", "segments", "all"])
def test_integers_that_are_known_as_it_is_called(name):
    check(placed.case(name, 65, far=False), "bfloat16")


@pytest.mark.parametrize("name", FLEXIBLE)
def test_flex_attention(name, small):
    check(placed.case(name, 65), "bfloat16")
    assert small
    assert all(small), flexible._failed


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_flex_attention_with_all_options_at_any_size(dtype, small):
    for size in SIZES:
        check(placed.case("all", size), dtype)
    assert all(small), flexible._failed
    assert not flexible._by_size


def test_nothing_waits_for_the_gpu(small):
    """PyTorch raises where a call would wait; for the first one of a kind, whose kernel is compiled, it may."""
    for name in NAMES:
        case = placed.case(name, 65)
        layer, call = case.layer("torch", "bfloat16"), case.call("bfloat16")
        X = [torch.tensor(X.astype("float32"), device="cuda").bfloat16() for X in case.inputs("bfloat16")[:3]]
        call = {
            key: torch.tensor(X.astype("float32"), device="cuda").bfloat16() if placed.is_floats(X) else X
            for key, X in call.items()
        }
        layer(*X, **call)
        torch.cuda.set_sync_debug_mode("error")
        try:
            layer(*X, **call)
        finally:
            torch.cuda.set_sync_debug_mode("default")


KERNELS = {
    SDPBackend.MATH: (("none", "order", "lengths", "mask"), DTYPES),
    SDPBackend.EFFICIENT_ATTENTION: (("none", "order", "lengths", "mask"), ("float32", "float16", "bfloat16")),
    SDPBackend.FLASH_ATTENTION: (("none", "order"), ("float16", "bfloat16")),
    SDPBackend.CUDNN_ATTENTION: (("none", "order"), ("float16", "bfloat16")),
}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_each_kernel_by_itself(kernel):
    names, dtypes = KERNELS[kernel]
    with sdpa_kernel(kernel):
        for name in names:
            for dtype in dtypes:
                check(placed.case(name, 129), dtype)


@pytest.mark.parametrize("size", [129, 704])
def test_a_token_in_a_cache(size):
    layer = mha.MultiHeadAttention(96, 6, num_key_value_heads=3, seed=0, backend="torch", dtype="bfloat16")
    layer.layer.to("cuda")
    X = torch.tensor(parity.inputs(layer, 1, size)[0].astype("float32"), device="cuda").bfloat16()
    whole = layer(X, X, X, causal=True)
    cache = layer.cache(1, size)
    _, cache = layer(*3 * [X[:, :-4]], cache=cache, causal=True)
    for place in range(size - 4, size):
        token, cache = layer(*3 * [X[:, place : place + 1]], cache=cache, causal=True)
        torch.testing.assert_close(token, whole[:, place : place + 1], rtol=2e-2, atol=2e-2)


# Faults of kernels


def heads(*sizes, dtype=torch.bfloat16, seed=0):
    """Queries, keys and values (B, H, T, d) on the GPU, which need gradients."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(sizes, device="cuda", generator=generator).to(dtype).requires_grad_() for _ in range(3)]


def pooled_by(kernel, *arrays, **options):
    with sdpa_kernel(SDPBackend[kernel]):
        return torch.nn.functional.scaled_dot_product_attention(*arrays, **options)


def rows_without_keys(kernel):
    q, k, v = heads(2, 2, 64, 64)
    mask = torch.ones(2, 1, 1, 64, dtype=torch.bool, device="cuda")
    mask[1] = False
    return not pooled_by(kernel, q, k, v, mask)[1].any()


def half_a_tile(kernel):
    q, _, v = heads(1, 1, 704, 64)
    mask = torch.ones(1, 1, 704, 704, dtype=torch.bool, device="cuda")
    large = torch.full_like(q, 4.0).detach().requires_grad_()
    pooled_by(kernel, large, -large.detach(), v, mask).sum().backward()  # all scores are far below 0
    return bool(large.grad.isfinite().all())


def mask_of_another_dtype(kernel):
    q, k, v = heads(1, 2, 64, 64)
    mask = torch.zeros(64, 64, device="cuda").masked_fill(torch.ones(64, 64, device="cuda").triu(1) > 0, float("-inf"))
    expected = pooled_by("MATH", q, k, v, is_causal=True)
    return bool((pooled_by(kernel, q, k, v, mask) - expected).abs().max() < 0.05)


def shared_memory(kernel):
    q, k, v = heads(1, 4, 128, 64)
    one = [X[:, :1].detach() for X in (k, v)]
    shared, copied = ([X.expand(1, 4, 128, 64) for X in one], [X.repeat(1, 4, 1, 1) for X in one])
    expected = pooled_by("MATH", q, *copied)
    return bool((pooled_by(kernel, q, *shared) - expected).abs().max() < 0.05)


def a_plan_for_each_length(kernel):
    q, k, v = (X.detach() for X in heads(1, 8, 600, 64))
    pooled_by(kernel, q[:, :, :1], k[:, :, :500], v[:, :, :500])
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for size in range(501, 511):
        pooled_by(kernel, q[:, :, :1], k[:, :, :size], v[:, :, :size])
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / 10 < 5e-3


def long_masks(kernel):
    q, k, v = heads(1, 1, 47_000, 16)
    mask = torch.ones(1, 1, 47_000, 47_000, dtype=torch.bool, device="cuda")
    try:
        pooled_by(kernel, q, k, v, mask).sum().backward()
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return bool(q.grad.isfinite().all())


RIGHT = {
    "rows without keys": rows_without_keys, "half a tile": half_a_tile, "mask of another dtype": mask_of_another_dtype,
    "shared memory": shared_memory, "a plan for each length": a_plan_for_each_length, "long masks": long_masks,
}  # fmt: skip


@pytest.mark.parametrize("name", kernels.FAULTS)
def test_a_fault_of_a_kernel_is_still_there(name, record_property):
    """Fails where a fault that was seen here has gone in the same version; of others it says so in the report."""
    fault = kernels.FAULTS[name]
    try:
        has_gone = RIGHT[name](fault.kernel)
    except RuntimeError:  # the kernel does not take such a call
        has_gone = True
    record_property("gone", has_gone)
    print(f"{name}: {'gone' if has_gone else 'still there'} in PyTorch {torch.__version__}")
    version, place = fault.seen.split(", ")
    if place != "published" and torch.__version__.startswith(version):
        assert not has_gone, f"{fault.kernel}: {fault.fault}; no longer, so that it can be taken out of FAULTS"
