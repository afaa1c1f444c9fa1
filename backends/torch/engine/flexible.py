"""PyTorch's `flex_attention` on a GPU, for what its other kernels do not know: windows, caps, sinks, packed texts.

Letters as in the chapters. What hides, and what changes a score, is a function of one pair of a query and a key.
"""

import functools
import importlib.util
import itertools
import math
import types
import warnings
import weakref

import torch
from torch.nn.attention import flex_attention as flex

from mha.core.call import PACKED, PLACES, note_kernel
from mha.core.engine.scores import needs_scores
from mha.core.engine.visible_range import uses_all
from mha.core.options.checks import FURTHEST

from ..hiding import four_axes, places, signed, widen
from .pooling import only_causal

LEAST = 2**20  # pairs of a sample: for fewer, to compile the kernel is not worth its seconds
WIDTHS = range(16, 257)  # of heads
DTYPES = torch.float16, torch.bfloat16  # in float32, matrix products here are slow, or TF32
HAS_TRITON = importlib.util.find_spec("triton") is not None  # which compiles it
MOST = 256  # kinds of calls that are remembered
_numbers = itertools.count()
_by_size: set = set()  # kinds that are compiled for one size each, since for any size they cannot be
_failed: list = []
_last: tuple = (None, [], None)  # of the last mask by arrays: facts, weak references to these with versions, the mask


def is_there():
    """Whether this PyTorch has what is needed to compile the kernel for a GPU, and has not failed to."""
    return not _failed and HAS_TRITON


def takes(pooling, config, call, queries, keys):
    """Whether the kernel pools a call on a GPU, and faster than others; pooling: of dot products; queries (B, Q, any).

    It is compiled for a while, takes no dropout, and its gradients of a bias are slow. A program that is being compiled
    has sizes that are not known.
    """
    if not queries.is_cuda or torch.compiler.is_compiling():
        return False
    training = pooling.training if call.training is None else call.training
    if queries.dtype not in DTYPES or queries.shape[1] * keys.shape[1] < LEAST:
        return False
    if call.score_bias is not None and call.score_bias.requires_grad:
        return False
    if needs_scores(pooling, call, training, ("softcap", "sinks")) or torch._C._are_functorch_transforms_active():
        return False
    # Something hides of which other kernels would need an array of pairs, and that is none itself.
    hides = call.hides() and not call.pairs() and not only_causal(call)
    fits = config.key_dim in WIDTHS and config.value_dim in WIDTHS
    return fits and (config.softcap is not None or config.sinks or hides) and is_there()


def pool_flexibly(queries, keys, values, call, scale=None, softcap=None):
    """Pool heads (B, H, Q, d) over keys (B, G, K, d) and values (B, G, K, dv): (B, H, Q, dv).

    None, with a warning, if the kernel cannot be compiled, as without a compiler for C; then it is not tried again.
    """
    heads, order = (queries, keys, values), (call.causal, call.plan.window, call.plan.chunk)
    arrays, sinks = arrays_that_hide(call, queries.device), call.plan.sinks
    needs_sums = sinks is not None or not uses_all(call, queries.shape[2], keys.shape[2])
    facts = kind(heads, arrays, (*order, scale, softcap, needs_sums))
    own_size = facts, *(X.shape for X in heads)
    for known in (own_size,) if facts in _by_size else (facts, own_size):
        try:
            functions = compiled(known, known is facts)
            mask = mask_of(functions[1], call, arrays, order, queries, keys.shape[2])
            return _pool(functions[0], heads, mask, arrays, scale, softcap, needs_sums, sinks)
        except torch._dynamo.exc.TorchDynamoException as error:
            _by_size.add(facts)
            found = error
    _failed.append(found)
    said = str(found).strip().partition("\n")[0]
    warnings.warn(
        f"PyTorch cannot compile flex_attention here, and calls take more time without it: {said}", stacklevel=2
    )
    return None


def _pool(pool, heads, mask, arrays, scale, softcap, needs_sums, sinks):
    """The pooled heads (B, H, Q, dv), by a compiled function.

    sums are logarithms of the sum of a query's exp(score). A sink takes its share of the weights: they are what they
    are without it, times exp(sum) / (exp(sum) + exp(sink)). A query that sees no key has -inf there, and gets 0.
    """
    note_kernel("flex_attention")
    options = {"scale": scale, "enable_gqa": heads[0].shape[1] > heads[1].shape[1], "block_mask": mask}
    options["score_mod"] = changed_score(softcap, arrays.get("score_bias"))
    if not needs_sums:
        return pool(*heads, **options)  # (B, H, Q, dv)
    pooled, more = pool(*heads, return_aux=flex.AuxRequest(lse=True), **options)  # (B, H, Q, dv)
    sums = more.lse[..., None]  # (B, H, Q, 1)
    if sinks is not None:
        pooled = (widen(pooled) * torch.sigmoid(sums - widen(sinks))).to(pooled.dtype)  # (B, H, Q, dv)
    return torch.where(sums == -math.inf, 0, pooled)


def arrays_that_hide(call, device):
    """The arrays of a call that hide or are added, by name: of pairs (B or 1, H or 1, Q or 1, K), or (B or 1, any)."""
    arrays = {name: four_axes(X) for name, X in call.pairs().items()}
    arrays |= {name: places(None, X) for name, X in call.of_tokens().items()}  # (B or 1, T)
    if call.valid_lens is not None:
        arrays["valid_lens"] = signed(call.valid_lens.reshape(len(call.valid_lens), -1), FURTHEST)  # (B, 1 or Q)
    if "segments" in arrays:
        arrays.setdefault("key_segments", arrays["segments"])
    if type(call.offset) is not int:
        arrays["offset"] = call.offset  # (B or 1, 1)
    elif call.offset:  # as an array: for each number, the kernel would be compiled anew
        arrays["offset"] = torch.full((1, 1), call.offset, device=device)
    return arrays


def kind(heads, arrays, options):
    """The facts for which the kernel is compiled; a size is among them where it is 1."""
    of_heads = [(X.dtype, X.shape[1], X.shape[3], X.requires_grad) for X in heads]
    of_arrays = [(name, X.dtype, *(size == 1 for size in X.shape)) for name, X in arrays.items()]
    return (heads[0].device, torch.is_grad_enabled(), *of_heads, *of_arrays, *options)


@functools.lru_cache(MOST)
def compiled(known, any_size):
    """The kernel, and what makes its block mask, compiled for what is known of a call; any_size: of any sizes.

    PyTorch compiles one function 8 times, and then no longer: each has its own.
    """
    dynamic = None if any_size else False  # None = once a second size has come
    return tuple(
        torch.compile(of_its_own(made), dynamic=dynamic) for made in (flex.flex_attention, flex.create_block_mask)
    )


def of_its_own(function):
    """A function that calls this one, with code of its own."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    code = call.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


def mask_of(make_mask, call, arrays, order, queries, num_keys):
    """The mask by blocks of pairs; that of the call before if it had the same arrays, as layers of a model have.

    None if nothing hides; arrays: as of `arrays_that_hide`.
    """
    global _last
    if not arrays:
        found = make_mask, order, queries.shape[2], num_keys, queries.device
        return lasting_mask(*found) if any(order) else None
    named = call._replace(head_gates=None).arrays()
    given = [*named.values()]
    if any(X.is_inference() for X in given):  # which do not know whether they were changed
        return block_mask(make_mask, arrays, order, queries, num_keys)
    facts = order, queries.shape[:3], num_keys, queries.device, call.offset if type(call.offset) is int else None
    facts += *named, torch.is_inference_mode_enabled()
    before, seen, mask = _last
    if before == facts and all(
        X is old() and X._version == version for X, (old, version) in zip(given, seen, strict=True)
    ):
        return mask
    mask = block_mask(make_mask, arrays, order, queries, num_keys)
    _last = facts, [(weakref.ref(X), X._version) for X in given], mask
    return mask


@functools.lru_cache(MOST)
def lasting_mask(make_mask, order, num_queries, num_keys, device):
    """The mask (1, 1, Q, K) by blocks of pairs, where the order alone hides; calls with gradients take it, too."""
    with torch.inference_mode(False):
        return make_mask(visible_pair({}, *order), None, None, num_queries, num_keys, device)


def block_mask(make_mask, arrays, order, queries, num_keys):
    """The mask (B or 1, H or 1, Q, K) by blocks of pairs, which the kernel leaves out where none is visible."""
    B, H, Q, _ = queries.shape
    B = B if any(len(X) > 1 for X in arrays.values()) else None
    H = H if any(X.ndim == 4 and X.shape[1] > 1 for X in arrays.values()) else None
    return make_mask(visible_pair(arrays, *order), B, H, Q, num_keys, queries.device)


def visible_pair(arrays, causal, window, chunk):
    """What `visible_keys` of the chapter gives, as a function of the numbers of a sample, head, query and key."""
    left, right = window or (None, None)
    lengths, mask, score_bias, offset, positions, key_positions, own, others = (
        element_of(arrays.get(name)) for name in ("valid_lens", "mask", "score_bias", "offset", *PLACES, *PACKED)
    )

    def visible(sample, head, query, key):
        seen = key >= 0
        if lengths is not None:
            seen = seen & (key < lengths(sample, query))
        if mask is not None:
            seen = seen & mask(sample, head, query, key)
        if score_bias is not None:
            seen = seen & (score_bias(sample, head, query, key) != -math.inf)
        if own is not None:
            seen = seen & (own(sample, query) >= 0) & (own(sample, query) == others(sample, key))
        if positions is not None:
            at = positions(sample, query)
            seen = seen & (at >= 0)
        else:
            at = query if offset is None else query + offset(sample, query)
        if key_positions is not None:
            key = key_positions(sample, key)
            seen = seen & (key >= 0)
        if causal:
            seen = seen & (key <= at)
        if left is not None:
            seen = seen & (at - left <= key)
        if right is not None:
            seen = seen & (key - right <= at)
        if chunk is not None:
            seen = seen & (at - at % chunk == key - key % chunk)
        return seen

    return visible


def changed_score(softcap, score_bias):
    """What a pooling's `bend` does to scores, as a function of one and its place; None if it does nothing."""
    if softcap is score_bias is None:
        return None
    added = element_of(score_bias)

    def change(score, sample, head, query, key):
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if added is None else score + added(sample, head, query, key)

    return change


def element_of(X):
    """A function of places, one of each axis, that gives the element of X there; an axis of size 1 is the same for all.

    None stays None.
    """
    if X is None:
        return None
    own, X = [size > 1 for size in X.shape], X.squeeze()

    def element(*numbers):
        places = tuple(number for number, is_own in zip(numbers, own, strict=True) if is_own)
        return X[places] if places else X

    return element
