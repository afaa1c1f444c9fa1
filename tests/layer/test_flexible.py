"""PyTorch's `flex_attention` as calls on a GPU take it: each function of a pair, all options, and where it fails."""

import itertools
import math

import gpu_of_torch
import numpy as np
import pytest
import torch
from gpu_of_torch import Kernels
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mha
from mha import parity
from mha.backends.torch.engine import flexible
from mha.backends.torch.hiding import visible_keys
from mha.core.call import Call
from mha.models.frameworks.torch_kernels import visible_pairs

pytestmark = pytest.mark.backends("torch")
gpu = gpu_of_torch.gpu
B, H, Q, K = 3, 2, 7, 11


def numbers(*shape, least=-1, most=9):
    generator = np.random.default_rng(sum(shape) + most)
    return torch.tensor(generator.integers(least, most, shape))


ARRAYS = {
    "nothing": {},
    "lengths": {"valid_lens": numbers(B, least=0, most=K + 2)},
    "lengths of each query": {"valid_lens": numbers(B, Q, least=0, most=K + 2)},
    "mask": {"mask": numbers(B, Q, K) > 3},
    "mask for all": {"mask": numbers(Q, K) > 3},
    "mask of heads": {"mask": numbers(B, H, 1, K) > 3},
    "bias": {"score_bias": torch.where(numbers(1, H, Q, K) > 3, 1.0, -math.inf)},
    "offset": {"offset": 3},
    "offset before": {"offset": -2},
    "offsets": {"offset": numbers(B, 1)},
    "positions": {"positions": numbers(B, Q)},
    "positions of both": {"positions": numbers(Q), "key_positions": numbers(B, K)},
    "positions of keys": {"key_positions": numbers(K)},
    "segments": {"segments": numbers(B, Q, most=3), "key_segments": numbers(B, K, most=3)},
    "segments for all": {"segments": numbers(Q, most=3), "key_segments": numbers(K, most=3)},
    "all": {
        "valid_lens": numbers(B, least=3, most=K), "mask": numbers(B, 1, Q, K) > -1, "positions": numbers(B, Q),
        "key_positions": numbers(B, K), "segments": numbers(B, Q, most=2), "key_segments": numbers(B, K, most=2),
    },
}  # fmt: skip


@pytest.mark.parametrize("given", ARRAYS)
def test_a_pair_is_visible_as_in_the_chapter(given):
    seen = 0
    for order in itertools.product((False, True), (None, (2, 0), (None, 2), (1, 3)), (None, 3)):
        causal, window, chunk = order
        call = Call(causal=causal, **ARRAYS[given]).with_plan(window=window, chunk=chunk)
        arrays = flexible.arrays_that_hide(call, "cpu")
        found = visible_pairs(flexible.visible_pair(arrays, *order), (B, H, Q, K), "cpu")
        expected = visible_keys(torch.zeros(B, Q, 0), torch.zeros(B, K, 0), call)
        expected = torch.ones(B, H, Q, K, dtype=torch.bool) if expected is None else expected.expand(B, H, Q, K)
        assert torch.equal(found, expected), order
        seen += int(expected.sum())
    assert seen


@pytest.mark.parametrize(
    "given",
    [
        {"valid_lens": torch.tensor([300, 100, 0])},
        {"mask": torch.arange(300)[None, None] < torch.tensor([[[300]], [[100]], [[0]]])},
        {"mask": (torch.arange(300) < torch.tensor([[300], [100]]))[None, :, None]},
        {"segments": torch.arange(300) // 130},
    ],
    ids=["lengths", "mask of samples", "mask of heads", "segments"],
)
def test_a_block_is_left_out_where_nothing_is_visible_in_its_own_sample_and_head(given):
    queries, call = torch.zeros(3, 2, 300, 16), Call(**given)
    arrays = flexible.arrays_that_hide(call, "cpu")
    found = flexible.block_mask(create_block_mask, arrays, (False, None, None), queries, 300).to_dense()
    visible = visible_keys(queries[:, 0], queries[:, 0], call).expand(3, 2, 300, 300)
    blocks = torch.nn.functional.pad(visible, (0, 84, 0, 84)).unflatten(3, (3, 128)).unflatten(2, (3, 128))
    assert torch.equal(found.bool().expand(3, 2, 3, 3), blocks.any(5).any(3))


def results(dtype):
    """The results of a suite that fail, and how many there are."""
    found = [result for check in parity.plan("torch", "full", dtypes=[dtype]) for result in check.run()]
    return [result for result in found if not result.passed], len(found)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.long("torch"))])
def test_every_option_is_as_everywhere(dtype, gpu):
    taken = Kernels().note_flexible(gpu).calls
    wrong, total = results(dtype)
    assert not wrong
    assert total > 100
    assert len(taken) > 100


@pytest.mark.long("torch")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of the compiler's own steps
def test_every_option_is_captured_by_the_compiler(gpu):
    """By PyTorch's compiler without the part that is of a device."""
    gpu.setattr(torch, "compile", compile_captured)
    gpu.setattr(flexible, "compiled", COMPILED)
    COMPILED.cache_clear()
    wrong, _ = results("bfloat16")
    COMPILED.cache_clear()
    assert not wrong
    assert not flexible._by_size


COMPILED, COMPILE = flexible.compiled, torch.compile


def compile_captured(function, **options):
    return COMPILE(function, backend="eager", fullgraph=True, **options)


def test_each_kind_has_code_of_its_own_under_a_name_of_its_own():
    made = [flexible.of_its_own(len) for _ in range(3)]
    assert [function("ab") for function in made] == [2, 2, 2]
    assert len({id(function.__code__) for function in made}) == len({one.__code__.co_name for one in made}) == 3


@pytest.mark.long("torch")
def test_one_kind_of_call_is_compiled_once_for_any_size_and_kinds_have_code_of_their_own(gpu):
    compiled = []

    def noting(function, **options):
        compiled.append(function.__code__)
        return compile_captured(function, **options)

    gpu.setattr(torch, "compile", noting)
    gpu.setattr(flexible, "compiled", COMPILED)
    COMPILED.cache_clear()
    for layer in (mha.MultiHeadAttention(32, 2, window=(n, 0), backend="torch", dtype="bfloat16") for n in range(12)):
        for size in (30, 41, 57):
            X = torch.ones(1, size, 32, dtype=torch.bfloat16)
            with torch.no_grad():
                layer(X, X, X, causal=True)
    assert len({id(code) for code in compiled}) == len(compiled) == 12 * 2  # the kernel and its mask
    assert len({code.co_name for code in compiled}) == len(compiled)
    COMPILED.cache_clear()


def call_of_a_layer(**options):
    layer = mha.MultiHeadAttention(32, 2, window=(5, 5), seed=1, backend="torch", dtype="bfloat16", **options)
    X = torch.tensor(np.random.default_rng(2).normal(size=(2, 23, 32))).to(torch.bfloat16)
    call = {"valid_lens": torch.tensor([23, 0]), "segments": torch.arange(23) // 9}
    return layer, X, call


@pytest.mark.parametrize("places", [False, True], ids=["segments", "positions"])
@pytest.mark.parametrize("options", [{}, {"num_key_value_heads": 1, "sinks": True}], ids=["plain", "groups, sinks"])
def test_where_it_cannot_be_compiled_others_compute_the_same_with_a_warning_once(options, places, gpu):
    def fails(known, any_size):
        tried.append(any_size)
        raise torch._dynamo.exc.BackendCompilerFailed(flex_attention, RuntimeError("no compiler for C"), None)

    tried = []
    gpu.setattr(flexible, "compiled", fails)
    layer, X, call = call_of_a_layer(**options)
    call = {"positions": torch.arange(23) * 2, "causal": True} if places else call
    with pytest.warns(UserWarning, match="cannot compile flex_attention") as warned:
        found = layer(X, X, X, **call)
    assert tried == [True, False]
    assert len(warned) == 1
    assert parity.ratio(layer, found, X, X, X, empty_rows=True, **call) <= 1
    again = layer(X, X, X, **call)  # whose plan is known
    other, *_ = call_of_a_layer(**options)
    assert torch.equal(other(X, X, X, **call), again)
    assert torch.equal(found, again)
    assert tried == [True, False]


@pytest.mark.parametrize("options", [{}, {"sinks": True}], ids=["plain", "sinks"])
def test_rows_without_keys_are_zero_whatever_the_kernel_does(options, gpu):
    def wrong(*heads, **given):
        pooled, more = flex_attention(*heads, **given)
        return torch.where(more.lse[..., None] == -math.inf, 7.0, pooled), more

    gpu.setattr(flexible, "compiled", lambda known, any_size: (wrong, create_block_mask))
    layer, X, call = call_of_a_layer(**options)
    found = layer(X, X, X, **call)
    assert parity.ratio(layer, found, X, X, X, empty_rows=True, **call) <= 1
    assert not found[1].any()


def test_where_any_size_cannot_be_compiled_each_is_by_itself(gpu):
    def fails(known, any_size):
        tried.append(any_size)
        if any_size:
            raise torch._dynamo.exc.BackendCompilerFailed(flex_attention, RuntimeError("a size is not known"), None)
        return flex_attention, create_block_mask

    tried = []
    gpu.setattr(flexible, "compiled", fails)
    layer, X, call = call_of_a_layer()
    for _ in range(3):
        assert parity.ratio(layer, layer(X, X, X, **call), X, X, X, empty_rows=True, **call) <= 1
    assert tried == [True, False, False, False]


def test_layers_with_the_same_lengths_share_a_mask_until_these_change(gpu):
    made, block_mask = [], flexible.block_mask
    gpu.setattr(flexible, "block_mask", lambda *given: made.append(given) or block_mask(*given))
    layer, X, _ = call_of_a_layer()
    lengths, others = torch.tensor([23, 5]), torch.tensor([23, 5])

    def counted(one, *given, **call):
        made.clear()
        output = one(X, X, X, *given, **call)
        assert parity.ratio(one, output, X, X, X, *given, empty_rows=True, **call) <= 1
        return len(made)

    capped = mha.MultiHeadAttention(32, 2, window=(5, 5), softcap=2.0, backend="torch", dtype="bfloat16")
    wider = mha.MultiHeadAttention(32, 2, window=(6, 5), backend="torch", dtype="bfloat16")
    assert [counted(one, lengths) for one in (layer, layer, capped, wider, layer)] == [1, 0, 0, 1, 1]
    assert counted(layer, others) == 1
    assert counted(layer, lengths) == 1
    lengths[1] = 9
    assert counted(layer, lengths) == 1
    assert counted(layer, lengths, causal=True) == 1
    texts = torch.arange(46).reshape(2, 23) // 9
    assert [counted(layer, **{name: texts}) for name in ("segments", "positions", "segments")] == [1, 1, 1]
    assert counted(layer, lengths, mask=torch.ones(23, 23, dtype=torch.bool)) == 0  # by another kernel
    with torch.inference_mode():
        assert counted(layer, lengths) == 1
        assert counted(layer, lengths) == 0
        assert [counted(layer, X) for X in 2 * [torch.tensor([9, 9])]] == [1, 1]
    assert counted(layer, lengths) == 1


def test_a_lasting_mask_of_inference_serves_training(gpu):
    layer, X, _ = call_of_a_layer()
    with torch.inference_mode():
        expected = layer(X, X, X)
    output = layer(X.clone().requires_grad_(), X, X)
    output.sum().backward()
    assert torch.equal(output, expected)
    assert flexible.lasting_mask.cache_info().misses == 1
