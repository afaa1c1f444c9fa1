"""Which of PyTorch's kernels a call takes on a GPU, by one that is only named; and that rows without keys are 0."""

import math
from pathlib import Path

import gpu_of_torch
import numpy as np
import pytest
import torch
from gpu_of_torch import Kernels, no_waiting

import mha
from mha import parity
from mha.backends.torch.engine import flexible, kernels
from mha.core.call import Call, note_kernels
from mha.core.engine import blocks

pytestmark = pytest.mark.backends("torch")
gpu = gpu_of_torch.gpu
SHOWN, ORDERED, MASKED = ("nothing", "not cuDNN"), ("order", "not cuDNN"), ("mask", "not cuDNN")
FLEXIBLE = "flexible", None
LENGTHS, SEGMENTS = {"valid_lens": [7, 3, 0]}, {"segments": np.repeat([[0, 1, -1]], 3, 0).repeat([2, 4, 1], 1)}
PAIRS = {
    "mask": {"mask": np.tri(7, k=-1, dtype=bool)},
    "bias": {"score_bias": np.where(np.tri(7, k=-1), 0.0, -np.inf)},
}
CALLS = PAIRS | {
    "lengths": LENGTHS,
    "a length for each query": {"valid_lens": np.arange(21).reshape(3, 7) % 8},
    "order at an offset": {"causal": True, "offset": -2},
    "segments": SEGMENTS,
}
# Options of a layer, a call, and the kernel: in float32, and in half precision.
WAYS = {
    "none": ({}, {}, SHOWN, SHOWN),
    "order": ({}, {"causal": True}, ORDERED, ORDERED),
    "groups": ({"num_key_value_heads": 2}, {}, SHOWN, SHOWN),
    "lengths": ({}, LENGTHS, MASKED, FLEXIBLE),
    "lengths, groups": ({"num_key_value_heads": 2}, LENGTHS, MASKED, FLEXIBLE),
    "lengths, rotary": ({"rotary": mha.Rotary(10)}, LENGTHS, MASKED, FLEXIBLE),
    "lengths, gates of heads": ({}, LENGTHS | {"head_gates": np.ones(4)}, MASKED, FLEXIBLE),
    "mask": ({}, PAIRS["mask"], MASKED, MASKED),
    "bias": ({}, PAIRS["bias"], MASKED, MASKED),
    "segments": ({}, SEGMENTS, MASKED, FLEXIBLE),
    "segments, mask": ({}, SEGMENTS | PAIRS["mask"], MASKED, MASKED),
    "order at an offset": ({}, {"causal": True, "offset": 3}, MASKED, FLEXIBLE),
    "window": ({"window": (2, 0)}, {"causal": True}, MASKED, FLEXIBLE),
    "window, groups": ({"window": (2, 1), "num_key_value_heads": 2}, {}, MASKED, FLEXIBLE),
    "chunk": ({"chunk": 3}, {"causal": True}, MASKED, FLEXIBLE),
    "cap": ({"softcap": 2.0}, {}, None, FLEXIBLE),
    "cap, mask": ({"softcap": 2.0}, PAIRS["mask"], None, FLEXIBLE),
    "sinks": ({"sinks": True}, {"causal": True}, None, FLEXIBLE),
    "sinks, bias": ({"sinks": True}, PAIRS["bias"], None, FLEXIBLE),
    "dropout": ({"dropout": 0.5}, LENGTHS | {"training": True}, None, None),
    "additive": ({"pooling": "additive"}, LENGTHS, None, None),
    "values of another width": ({"value_dim": 13}, {}, None, None),
    "a cap, values of another width": ({"value_dim": 13, "softcap": 2.0}, {}, None, FLEXIBLE),
}  # fmt: skip


def layer(dtype="float32", seed=0, **options):
    return mha.MultiHeadAttention(44, 4, seed=seed, backend="torch", dtype=dtype, **options)


def inputs(dtype="float32", size=7, samples=3):
    X = np.random.default_rng(11).normal(size=(samples, size, 44)).astype("float32")
    return torch.tensor(X).to(getattr(torch, dtype))


def own_arrays(call, dtype):
    """The arrays of a call as tensors, where a GPU computes them: their values are not known on the processor."""
    made = {name: torch.tensor(X) if isinstance(X, (list, np.ndarray)) else X for name, X in call.items()}
    kind = getattr(torch, dtype)
    return {name: X.to(kind) if getattr(X, "dtype", None) == torch.float64 else X for name, X in made.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_takes_its_kernel_waits_for_nothing_and_is_as_the_lesson(way, dtype, gpu):
    options, call, *expected = WAYS[way]
    one, X, call = layer(dtype, **options), inputs(dtype), own_arrays(call, dtype)
    with Kernels().note_flexible(gpu) as seen, no_waiting():
        for _ in range(2):  # the second one by the plan of the first
            found = one(X, X, X, **call)
    assert set(seen.calls) == set(filter(None, [expected[dtype == "bfloat16"]]))
    if "dropout" not in options:
        exact = layer(dtype, readable=True, **options)(X, X, X, **call)
        assert parity.ratio(one, found, X, X, X, empty_rows=True, **call) <= 1
        assert parity.ratio(one, exact, X, X, X, empty_rows=True, **call) <= 1


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "options", [{}, {"num_key_value_heads": 2}, {"window": (2, 0)}], ids=["plain", "groups", "window"]
)
def test_gradients_are_those_of_a_kernel_that_is_right(call, options, gpu):
    X = inputs()
    with Kernels() as seen:
        if call != "bias":  # for whose gradient scores are kept
            layer(**options).gradients(X, X, X, **own_arrays(CALLS[call], "float32"))
    assert set(seen.calls) <= {MASKED}


@pytest.mark.parametrize("options", [{}, {"num_key_value_heads": 2}], ids=["plain", "groups"])
def test_long_calls_without_a_mask_take_any_kernel(options, gpu):
    X = inputs(size=kernels.LEAST, samples=1)
    with Kernels() as seen:
        layer(**options)(X, X, X)
        layer(**options)(X, X, X, causal=True)
        layer(**options)(X[:, 1:], X, X)
        layer(**options)(X[:, 1:], X, X, causal=True)
    assert seen.calls == [("nothing", "any"), ("order", "any"), SHOWN, ORDERED]


def test_windows_of_many_tokens_and_lone_queries_take_no_plan(gpu):
    X = inputs(size=3001, samples=1)
    with Kernels() as seen:
        layer(window=(5, 5))(X, X, X)
        layer(num_key_value_heads=2)(X[:, :1], X, X, mask=np.arange(3001)[None] < 17)
        layer()(X[:, :1], X, X)
    assert set(seen.calls) == {MASKED, SHOWN}


def test_a_token_in_a_cache_takes_no_plan_and_waits_for_nothing(gpu):
    one, X = layer(num_key_value_heads=2), inputs(samples=1)
    with Kernels() as seen, no_waiting(), torch.inference_mode():
        cache = one.cache(1, 9)
        for place in range(7):
            _, cache = one(*3 * [X[:, place : place + 1]], cache=cache)
    assert set(seen.calls) == {SHOWN}


def mean_of_all(kernel):
    """A kernel that takes the mean of all values for a row without keys, and sends gradients, as cuDNN's does."""

    def wrong(q, k, v, mask=None, **rest):
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, -1e30)
        return kernel(q, k, v, mask if mask is None else mask.clamp(min=-1e30), **rest)

    return wrong


def not_a_number(kernel):
    """A kernel that gives NaN for a row without keys, and as its gradients."""

    def wrong(q, k, v, mask=None, *, scale=None, **rest):
        if mask is None:
            return kernel(q, k, v, scale=scale, **rest)
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        return scores.softmax(-1) @ v

    return wrong


@pytest.mark.parametrize("kernel", [mean_of_all, not_a_number])
@pytest.mark.parametrize("call", [*CALLS, "order at an offset beside lengths"])
@pytest.mark.parametrize(
    "options", [{}, {"num_key_value_heads": 2}, {"window": (1, 0)}], ids=["plain", "groups", "window"]
)
def test_rows_without_keys_are_zero_whatever_the_kernel_does(call, options, kernel, gpu):
    given = CALLS.get(call, LENGTHS | {"causal": True, "offset": -2})
    wrong = kernel(torch.nn.functional.scaled_dot_product_attention)
    gpu.setattr(torch.nn.functional, "scaled_dot_product_attention", wrong)
    one, X = layer(**options, bias=True), inputs()
    own = own_arrays(given, "float32")
    assert parity.ratio(one, one(X, X, X, **own), X, X, X, empty_rows=True, **own) <= 1
    found = one.gradients(X, X, X, **own)
    lesson = layer(**options, bias=True, readable=True)
    for name, expected in lesson.gradients(X, X, X, **own).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4, err_msg=name)


def test_gradients_beside_a_bias_that_needs_none_are_numbers_whatever_the_kernel_does(gpu):
    gpu.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        not_a_number(torch.nn.functional.scaled_dot_product_attention),
    )
    X, one = inputs().requires_grad_(), layer()
    with Kernels() as seen:
        one.layer(X, X, X, **own_arrays(PAIRS["bias"], "float32")).sum().backward()
    assert X.grad.isfinite().all()
    assert not seen.calls  # of the right one


def test_heads_that_share_keys_are_not_told_so_by_strides(gpu):
    kernel, strides = torch.nn.functional.scaled_dot_product_attention, []

    def noting(*heads, **rest):
        strides.extend(stride for X in heads[:3] for stride, size in zip(X.stride(), X.shape, strict=True) if size > 1)
        return kernel(*heads, **rest)

    gpu.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    X, one = inputs(), layer(num_key_value_heads=2)
    for call in ({}, {"causal": True}, *CALLS.values()):
        one(X, X, X, **own_arrays(call, "float32"))
    assert strides
    assert 0 not in strides


def test_a_mask_has_booleans_or_the_dtype_of_queries(gpu):
    kernel, dtypes = torch.nn.functional.scaled_dot_product_attention, []

    def noting(q, k, v, mask=None, **rest):
        dtypes.append(mask.dtype)
        return kernel(q, k, v, mask, **rest)

    gpu.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    X, one = inputs("float16"), layer("float16")
    for call in PAIRS.values():
        one(X, X, X, **own_arrays(call, "float16"))
    assert dtypes == [torch.bool, torch.float16]


def test_scores_are_computed_at_once_or_as_memory_has_room(gpu):
    """The cap of a layer in float32 has its scores: on a processor in pieces, on a GPU at once, if they fit."""
    X, one, pieces = inputs(size=700, samples=2), layer(softcap=3.0), []
    pool = type(one.layer.attention).pool_block

    def noting(self, queries, *rest):
        pieces.append(queries.shape[1])
        return pool(self, queries, *rest)

    gpu.setattr(type(one.layer.attention), "pool_block", noting)
    at_once = one(X, X, X)
    assert pieces == [700]
    gpu.setattr(gpu_of_torch, "MEMORY", blocks.BYTES * blocks.SCORES * 2)
    in_pieces = layer(softcap=3.0)(X, X, X)
    assert pieces[1:] == [350, 350]
    torch.testing.assert_close(in_pieces, at_once)


def test_a_kernel_takes_all_samples_at_once_whatever_the_memory(gpu):
    gpu.setattr(gpu_of_torch, "MEMORY", 2 * blocks.BYTES * blocks.SCORES)
    X = inputs(size=700, samples=3)
    with Kernels() as seen:
        for call in ({}, {"valid_lens": [700, 300, 0]}, {"valid_lens": torch.tensor([700, 300, 0])}, {"causal": True}):
            layer()(X, X, X, **call)
    assert len(seen.calls) == 4


def test_what_pools_is_named(gpu):
    """By PyTorch's choice, which is a processor's here, and for a call of `flex_attention` or of products by that."""
    X, half, names = inputs(), inputs("bfloat16"), []
    for attention, Y, call in (
        (layer(), X, {}),
        (layer("bfloat16"), half, LENGTHS),
        (layer(softcap=2.0), X, {}),
        (layer(num_key_value_heads=2), X, PAIRS["mask"]),
    ):
        with note_kernels() as found:
            attention(Y, Y, Y, **own_arrays(call, str(Y.dtype)[6:]))
        names.append(sorted(found))
    assert names == [["FLASH_ATTENTION"], ["flex_attention"], ["products"], ["FLASH_ATTENTION"]]
    with note_kernels() as outer:
        with note_kernels():
            layer()(X, X, X)
        assert not outer


def test_a_program_that_is_compiled_takes_a_mask_and_asks_no_device(gpu):
    """PyTorch's compiler sees where tensors really are: of a device that is named, it can be asked this alone."""
    one, X = layer("bfloat16", window=(2, 1)), inputs("bfloat16")
    asked = one.layer.attention, one.config, Call().of_layer(one.config), X, X
    assert flexible.takes(*asked)
    assert kernels.room(X) == gpu_of_torch.MEMORY // blocks.BYTES
    gpu.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not flexible.takes(*asked)
    assert kernels.room(X) == kernels.MEMORY // blocks.BYTES


def test_the_faults_name_kernels_versions_and_threads_as_the_page_does():
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    names = {*torch.nn.attention.SDPBackend.__members__}
    for fault in kernels.FAULTS.values():
        assert fault.kernel in names
        assert fault.seen[0].isdigit()
        assert fault.thread is None or fault.thread.startswith(kernels.THREADS)
        assert (
            f"| {fault.fault} | {fault.seen} | {f'[#{fault.thread[-6:]}]({fault.thread})' if fault.thread else ''}"
            in page
        )


def test_a_file_leaves_it_out_too(tmp_path, gpu):
    config = mha.MultiHeadAttention(44, 4, backend="torch").config
    path = mha.write(config, "torch", tmp_path / "written_kernel.py", fused=True, call=["mask"])[0]
    gpu.syspath_prepend(tmp_path)
    written, X = __import__(path.stem).MultiHeadAttention(44, 4), inputs()
    with Kernels() as seen:
        written(X, X, X, mask=torch.tensor(np.tri(7, k=-1, dtype=bool)))
    assert set(seen.calls) == {MASKED}
