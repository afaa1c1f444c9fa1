"""A GPU that PyTorch's tensors are only said to be on: calls are planned for it, and computed by the processor."""

import contextlib
import types

import pytest
import torch
import torch.nn.attention.flex_attention as flex
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mha.backends.torch.engine import flexible

MEMORY = 80 * 2**30  # bytes
WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero"}  # operations that wait for a GPU


@pytest.fixture
def gpu(monkeypatch):
    """Say of all tensors that they are on a GPU; `flex_attention` takes calls of any size, and is not compiled."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda X: True))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(total_memory=MEMORY))
    monkeypatch.setattr(flexible, "is_there", lambda: not flexible._failed)
    monkeypatch.setattr(flexible, "_failed", [])
    monkeypatch.setattr(flexible, "_by_size", set())
    monkeypatch.setattr(flexible, "LEAST", 0)
    monkeypatch.setattr(flexible, "WIDTHS", range(1, 257))
    monkeypatch.setattr(flexible, "compiled", lambda known, any_size: (flex.flex_attention, flex.create_block_mask))
    monkeypatch.setattr(flex, "_validate_device", lambda *heads: None)  # which takes no gradients on a processor
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    flexible.lasting_mask.cache_clear()
    yield monkeypatch
    flexible.lasting_mask.cache_clear()


class Kernels(TorchFunctionMode):
    """Note of each call of a kernel whether it has a mask or an order of its own, and whether cuDNN's may run."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.nn.functional.scaled_dot_product_attention:
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
            hides = "mask" if mask is not None else "order" if kwargs.get("is_causal") else "nothing"
            self.calls.append((hides, "any" if torch.backends.cuda.cudnn_sdp_enabled() else "not cuDNN"))
        return function(*args, **kwargs)

    def note_flexible(self, monkeypatch):
        """Note calls of `flex_attention`, too."""
        pool = flexible.pool_flexibly

        def noting(*heads, **options):
            self.calls.append(("flexible", None))
            return pool(*heads, **options)

        monkeypatch.setattr(flexible, "pool_flexibly", noting)
        return self


class NoReading(TorchFunctionMode):
    """Fail where the values of a tensor are read, for which a GPU would be waited for."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__bool__):
            raise AssertionError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))


class NoWaiting(TorchDispatchMode):
    """Fail where an operation gives a value to Python, for which a GPU would be waited for."""

    supports_higher_order_operators = True  # such as that of `flex_attention`

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name().partition("::")[2].partition(".")[0] in WAITS:
            raise AssertionError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_waiting():
    """Inside, nothing may wait for a GPU."""
    with NoReading(), NoWaiting():
        yield
