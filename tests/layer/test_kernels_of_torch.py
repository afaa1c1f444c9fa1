"""Which of PyTorch's kernels a call takes on a GPU: not cuDNN's, where a mask may hide every key of a query."""

import contextlib

import numpy as np
import pytest

import mha

pytestmark = pytest.mark.backends("torch")
CALLS = {
    "lengths": {"valid_lens": [7, 3, 0]},
    "a length for each query": {"valid_lens": np.arange(21).reshape(3, 7) % 8},
    "mask": {"mask": np.tri(7, k=-1, dtype=bool)},
    "bias": {"score_bias": np.zeros((7, 7), "float32")},
    "order at an offset": {"causal": True, "offset": -2},
    "segments": {"segments": np.repeat([[0, 1, -1]], 3, 0).repeat([2, 4, 1], 1)},
}


@pytest.fixture
def taken(monkeypatch):
    """Of each call of the kernel, whether it has a mask, and whether cuDNN's may run; tensors say they are on a GPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    found = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.nn.functional.scaled_dot_product_attention:
                found.append((args[3] is not None, torch.backends.cuda.cudnn_sdp_enabled()))
            return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def watching():
        with Mode():
            yield found

    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return watching


def layer(**options):
    return mha.MultiHeadAttention(44, 4, seed=0, backend="torch", **options)


@pytest.mark.parametrize(
    "options", [{}, {"num_key_value_heads": 2}, {"window": (2, 0)}], ids=["plain", "groups", "window"]
)
@pytest.mark.parametrize("call", CALLS)
def test_where_a_mask_is_given_it_is_not_that_of_cudnn(call, options, taken, rng):
    X = rng.normal(size=(3, 7, 44)).astype("float32")
    with taken() as calls:
        layer(**options)(X, X, X, **CALLS[call])
        if call != "bias":  # for whose gradient scores are kept
            layer(**options).gradients(X, X, X, **CALLS[call])
    assert calls
    assert set(calls) == {(True, False)}


def test_windows_of_many_tokens_and_lone_queries_take_the_same(taken, rng):
    X = rng.normal(size=(1, 3001, 44)).astype("float32")
    with taken() as calls:
        layer(window=(5, 5))(X, X, X)
        layer(num_key_value_heads=2)(X[:, :1], X, X, mask=np.arange(3001)[None] < 17)
    assert len(calls) > 1
    assert set(calls) == {(True, False)}


def test_where_no_mask_is_given_any_may_run(taken, rng):
    X = rng.normal(size=(3, 7, 44)).astype("float32")
    with taken() as calls:
        layer()(X, X, X)
        layer()(X, X, X, causal=True)
    assert calls == 2 * [(False, True)]


def test_a_file_leaves_it_out_too(tmp_path, taken, rng, monkeypatch):
    import torch

    config = mha.MultiHeadAttention(44, 4, backend="torch").config
    path = mha.write(config, "torch", tmp_path / "written_kernel.py", fused=True, call=["mask"])[0]
    monkeypatch.syspath_prepend(tmp_path)
    written = __import__(path.stem).MultiHeadAttention(44, 4)
    X, mask = torch.tensor(rng.normal(size=(3, 7, 44)).astype("float32")), torch.tensor(np.tri(7, k=-1, dtype=bool))
    with taken() as calls:
        written(X, X, X, mask=mask)
    assert set(calls) == {(True, False)}
