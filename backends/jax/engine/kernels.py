"""What is different on a GPU: no small pieces, and cuDNN's kernel for the calls that it computes rightly and faster.

Letters as in the chapters.
"""

import contextlib
import functools
import math
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
from jax import numpy as jnp

from mha.core.call import Call, note_kernel
from mha.core.engine import blocks
from mha.core.engine.scores import needs_scores
from mha.core.engine.visible_range import reach, usage

from .. import arrays
from .operations import OPERATIONS

MEMORY = 2**34  # bytes of a GPU that does not say how many it has
TILE = 128  # rows that the kernel computes together, at most
FEW = 64  # queries or keys, for which the kernel is no faster than products
VERSION = jax.__version_info__
THREADS = "https://github.com/"
_PLAIN = contextlib.nullcontext()


class Case(NamedTuple):
    """A call of a pooling on heads of queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv)."""

    pooling: Any
    queries: Any
    keys: Any
    values: Any
    call: Call


class Limit(NamedTuple):
    """A limit or a published fault of the kernel.

    what: it is, for which versions; source: where it is said; remedy: to leave a call to XLA's products, or to give the
    kernel lengths, of as many tokens as there are if need be; concerns: whether it is about a case.
    """

    what: str
    source: str
    remedy: Literal["products", "lengths"]
    concerns: Callable[[Case], bool]


LIMITS = (
    Limit(
        "under jax.vmap, arrays that are not all mapped are an error before JAX 0.11.2",
        f"{THREADS}jax-ml/jax/pull/39451", "products",
        lambda case: VERSION < (0, 11, 2),
    ),
    Limit(
        "NVIDIA's GPUs of compute capability 8.0 or more",
        "cuDNN's documentation, page Attention", "products",
        lambda case: capability_of(case.call.plan.engine) < (8, 0),
    ),
    Limit(
        "float16 and bfloat16",
        "jax/_src/cudnn/fused_attention_stablehlo.py: check_layout", "products",
        lambda case: case.queries.dtype not in (jnp.float16, jnp.bfloat16),
    ),
    Limit(
        "heads at most 128 wide, a multiple of 8",
        "jax/_src/cudnn/fused_attention_stablehlo.py: check_is_flash_attention", "products",
        lambda case: case.queries.shape[2] > 128 or case.queries.shape[2] % 8 > 0,
    ),
    Limit(
        "values as wide as keys",
        "jax.nn.dot_product_attention", "products",
        lambda case: case.values.shape[2] != case.keys.shape[2],
    ),
    Limit(
        "dot products whose scores are neither kept, capped nor beside sinks",
        "jax.nn.dot_product_attention", "products",
        lambda case: case.pooling.has_features or needs_scores(case.pooling, case.call, case.call.training),
    ),
    Limit(
        "one device: a mesh has a way of its own in this engine",
        "pieces.py", "products",
        lambda case: jax.typeof(case.queries).sharding.mesh.size > 1,
    ),
    Limit(
        "with one query, gradients of keys and values are NaN (cuDNN 9.25 and 9.26); with few, nothing is faster",
        f"{THREADS}NVIDIA/cudnn-frontend/issues/1072", "products",
        lambda case: min(case.queries.shape[1], case.keys.shape[1]) < FEW,
    ),
    Limit(
        "with a mask or bias, gradients are NaN where 64 keys are left of a tile (cuDNN 9.20), those of a bias are for "
        "one sample alone, and a row that sees nothing pools something",
        f"{THREADS}pytorch/pytorch/issues/196678, {THREADS}jax-ml/jax/issues/30593", "products",
        lambda case: bool(case.call.pairs()),
    ),
    Limit(
        "no segments, positions or chunks of one row",
        "jax.nn.dot_product_attention", "products",
        lambda case: case.call.by_tokens(),
    ),
    Limit(
        "one length for all queries of a sample",
        "jax.nn.dot_product_attention", "products",
        lambda case: case.call.valid_lens is not None and case.call.valid_lens.shape[1] > 1,
    ),
    Limit(
        "a window without the causal order lets queries see all keys behind them",
        f"{THREADS}jax-ml/jax/pull/39576", "products",
        lambda case: reach(case.call) != (None, None) and reach(case.call)[1] != 0,
    ),
    Limit(
        "order is counted from the first query and key; it is not documented for more keys than queries, or fewer",
        "jax.nn.dot_product_attention", "products",
        lambda case: reach(case.call) != (None, None) and not _is_square(case),
    ),
    Limit(
        "gradients are NaN where tokens do not fill tiles (cuDNN 9.12 to 9.30), but not with lengths; those of an odd "
        "number of tokens are refused, also without a bias (JAX 0.11.2), so that one more is added behind the lengths",
        f"{THREADS}NVIDIA/cudnn-frontend/issues/160, {THREADS}NVIDIA/cudnn-frontend/pull/628, "
        "jax/_src/cudnn/fused_attention_stablehlo.py: _dot_product_attention_fwd_rule", "lengths",
        lambda case: case.queries.shape[1] % TILE > 0 or case.keys.shape[1] % TILE > 0,
    ),
    Limit(
        "a sample of length 0 gives NaN (cuDNN before 9.25), so that no length is below 1",
        f"{THREADS}NVIDIA/cudnn-frontend/issues/943", "lengths",
        lambda case: case.call.valid_lens is not None,
    ),
)  # fmt: skip


def beside_gpu(call, queries):
    """The call with the GPU that it runs on, if it does, and with how many scores make a piece there."""
    gpu = gpu_of(queries)
    if gpu is None:
        return call
    memory = (gpu.memory_stats() or {}).get("bytes_limit", MEMORY)
    return call.with_plan(engine=gpu, room=blocks.room_in(memory))


def gpu_of(X):
    """The GPU where X lies, or where a program that is being compiled will run; None = a processor."""
    device = _device_of(X)
    return device if device.platform == "gpu" else None


def on_device_of(X):
    """The context in which a program for X is compiled: if need be, one that says where it will run."""
    if not _gpus() or (device := _device_of(X)).platform == _usual_device().platform:
        return _PLAIN
    return jax.default_device(device)


@functools.cache
def _gpus():
    try:
        return jax.local_devices(backend="gpu")
    except RuntimeError:  # there are none
        return []


def _device_of(X):
    """The device of an array, or where the arrays of NumPy and of a compiler will be."""
    return next(iter(X.devices())) if isinstance(X, jax.Array) and arrays.is_known(X) else _usual_device()


def _usual_device():
    usual = jax.config.jax_default_device
    return usual if isinstance(usual, jax.Device) else jax.local_devices(backend=usual)[0]


def capability_of(gpu):
    """The compute capability of one of NVIDIA's GPUs, two ints; (0, 0) of another or of none."""
    numbers = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(gpu, "compute_capability", "")))
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)


def limits(remedy, *case):
    """What the kernel cannot do with a `Case`, of the limits with this remedy."""
    return [limit.what for limit in LIMITS if limit.remedy == remedy and limit.concerns(Case(*case))]


def pool_by_cudnn(pooling, queries, keys, values, num_heads, call):
    """The pooled values (B*H, Q, dv) of `AttentionPooling.pool`, by cuDNN's kernel.

    It has gradients of its own, and JAX refuses the forward mode and second derivatives of what has.
    """
    note_kernel("cuDNN")
    (BH, Q, d), K, (left, right) = queries.shape, keys.shape[1], reach(call)
    window = None if left is None or left >= Q - 1 else (left, 0)  # else it hides nothing that order does not
    B, lens, of_queries, sees = BH // num_heads, None, None, None
    if limits("lengths", pooling, queries, keys, values, call):
        of_queries, lens = jnp.full(B, Q, jnp.int32), jnp.full(B, K, jnp.int32)  # (B,)
    if call.valid_lens is not None:
        sees, _ = usage(OPERATIONS, queries, keys, call)  # (B, Q or 1)
        lens = jnp.clip(call.valid_lens[:, 0], 1, K).astype(jnp.int32)  # (B,)
        if window:  # the queries behind see nothing
            of_queries = jnp.minimum(lens + left, Q)  # (B,)
    even = (jnp.pad(X, ((0, 0), (0, X.shape[1] % 2), (0, 0))) for X in (queries, keys, values))
    pooled = jax.nn.dot_product_attention(
        *(X.reshape(B, -1, *X.shape[1:]).swapaxes(1, 2) for X in even),  # (B, T, H or G, d)
        scale=1 / math.sqrt(d) if pooling.scale is None else float(pooling.scale),
        is_causal=right == 0,
        query_seq_lengths=of_queries,
        key_value_seq_lengths=lens,
        local_window_size=window,
        implementation="cudnn",
    )[:, :Q]  # (B, Q, H, d)
    pooled = pooled if sees is None else jnp.where(sees[:, :, None, None], pooled, 0)  # (B, Q, H, d)
    return pooled.swapaxes(1, 2).reshape(BH, Q, d)  # (B*H, Q, d)


def _is_square(case):
    """Whether the first query is at the first key's place, and there are as many of both."""
    offset = case.call.offset
    return type(offset) is int and offset == 0 and case.queries.shape[1] == case.keys.shape[1]
