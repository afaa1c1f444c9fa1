"""PyTorch's fused kernels on a processor and on a GPU: what each gets wrong, and a call of one that is right.

Letters as in the chapters.
"""

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mha.core.call import recorder
from mha.core.engine import blocks


class Fault(NamedTuple):
    """A fault of one of the kernels behind `scaled_dot_product_attention` on a GPU.

    kernel: its name there; seen: the version of PyTorch, and the GPU where it was seen here, or that it is published;
    thread: where; avoided: how calls here avoid it.
    """

    kernel: str
    fault: str
    seen: str
    thread: str | None
    avoided: str


THREADS = "https://github.com/pytorch/pytorch/"
FAULTS = {
    "rows without keys": Fault(
        "CUDNN_ATTENTION", "a query whose mask hides every key gets a value, and sends gradients",
        "2.11, H100", None, "not taken beside a mask; such a query is shown keys, and its result is put to 0",
    ),
    "half a tile": Fault(
        "CUDNN_ATTENTION", "gradients of queries are NaN beside a mask, where the length modulo 128 is 64",
        "2.11, published", f"{THREADS}issues/196678", "not taken beside a mask",
    ),
    "mask of another dtype": Fault(
        "CUDNN_ATTENTION", "a mask in float32 beside queries in half precision is read as if it had their dtype",
        "2.11, published", f"{THREADS}pull/191612", "not taken beside a mask; masks have the queries' dtype",
    ),
    "shared memory": Fault(
        "CUDNN_ATTENTION", "keys and values that several heads share by a stride of 0 are read from elsewhere",
        "2.11, published", f"{THREADS}issues/191937", "heads that share keys are given once, or copied",
    ),
    "a plan for each length": Fault(
        "CUDNN_ATTENTION", "a token in a cache takes 67 ms, since each length of keys is planned anew",
        "2.11, H100", None, "taken for as many queries as keys alone, and not for a few",
    ),
    "long masks": Fault(
        "EFFICIENT_ATTENTION", "the backward pass beside a mask fails for more than 46,344 tokens",
        "2.6, published", f"{THREADS}issues/147585", "flex_attention takes long calls where it can",
    ),
}  # fmt: skip
MEMORY = 2**34  # bytes of a GPU that is not asked
LEAST = 128  # queries for which cuDNN may plan
RIGHT_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # beside a mask, on a GPU


def room(X):
    """How many scores are computed at once where X lies; None = as many as a processor's cache has room for."""
    if not X.is_cuda:
        return None
    compiles = torch.compiler.is_compiling()  # where a device is not asked
    return blocks.room_in(MEMORY if compiles else torch.cuda.get_device_properties(X.device).total_memory)


def pool_by_kernel(queries, keys, values, visible=None, *, is_causal=False, scale=None):
    """Pool heads (B, H, Q, d) over keys (B, H, K, d) and values (B, H, K, dv) by PyTorch's own kernel: (B, H, Q, dv).

    visible: booleans, or scores that are added, as of `scaled_dot_product_attention`; a query may see no key. On a GPU,
    keys may have fewer heads, which those of queries share.
    """
    if not queries.is_cuda:
        pool = nn.functional.scaled_dot_product_attention if recorder.kernels is None else _pool
        return pool(queries, keys, values, visible, is_causal=is_causal, scale=scale)
    times = queries.shape[1] // keys.shape[1]
    if times > 1 and visible is not None:
        keys, values = (X.repeat_interleave(times, 1) for X in (keys, values))  # (B, H, K, any)
        times = 1
    if visible is None:
        options = {"is_causal": is_causal, "scale": scale} | ({} if times == 1 else {"enable_gqa": True})
        if LEAST <= queries.shape[2] == keys.shape[2]:
            return _pool(queries, keys, values, **options)
        return _without_cudnn(queries, keys, values, **options)
    floats = visible.dtype != torch.bool
    sees = (visible > -math.inf if floats else visible).any(-1, keepdim=True)  # (B or 1, H or 1, Q or 1, 1)
    visible = torch.where(sees, visible, 0) if floats else visible | ~sees
    return torch.where(sees, _without_cudnn(queries, keys, values, visible, scale=scale), 0)


def _pool(*heads, **options):
    if recorder.kernels is not None:
        recorder.kernels.add(SDPBackend(torch._fused_sdp_choice(*heads, **options)).name)  # which PyTorch will choose
    return nn.functional.scaled_dot_product_attention(*heads, **options)


def _without_cudnn(*heads, **options):
    """The kernel's result, by another one than cuDNN's; to enter `sdpa_kernel` costs a small call much of its time."""
    if torch.compiler.is_compiling():
        with sdpa_kernel(RIGHT_KERNELS):
            return _pool(*heads, **options)
    switches = torch.backends.cuda
    before = switches.cudnn_sdp_enabled()
    switches.enable_cudnn_sdp(False)
    try:
        return _pool(*heads, **options)
    finally:
        switches.enable_cudnn_sdp(before)
