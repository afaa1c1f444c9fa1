"""Adapt models of PyTorch: tell a listener of the arrays that enter and leave their modules."""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from mha import arrays as of_any
from mha.models.audit.calls.kernel_call import LOW
from mha.models.audit.calls.listener import Listener, arguments_by_name, listen_to_bases
from mha.models.audit.calls.own_layers import Arguments
from mha.models.frameworks.torch_kernels import KERNELS, Functions

# Functions that make attention weights, and the place of a softmax' axis among the arguments.
SOFTMAX = (functional.softmax, torch.softmax, torch.Tensor.softmax)
LAYERS = (functional.multi_head_attention_forward,)
DROPOUT = (
    functional.dropout, torch.dropout, torch.dropout_, functional.alpha_dropout, functional.feature_alpha_dropout,
    functional.dropout1d, functional.dropout2d, functional.dropout3d,
)  # fmt: skip
PLAIN = "weight", "bias"  # all that a projection has
INPUTS = {"queries": "query", "keys": "key", "values": "value"}
CALLS = {
    torch.nn.MultiheadAttention: Arguments(
        (*INPUTS.values(), "key_padding_mask", "attn_mask", "is_causal"), ("need_weights", "average_attn_weights")
    )
}
PLACE = 4  # of the dropout among the arguments of a kernel


def prepare(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the model as it is: its modules and arrays are there without a call."""
    return model


def modules(model: Any) -> dict[str, Any]:
    """Return the modules of a model by path."""
    return dict(model.named_modules(remove_duplicate=False))


def arrays(model: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a model by their names."""
    return dict(model.state_dict())


def odd(module: Any) -> str:
    """Say why the weights of a projection are not plain arrays; "" if they are."""
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    if hasattr(module, "parametrizations"):
        return "parametrised"
    if any("base_layer" in name or "lora" in name.lower() for name in own):
        return "adapted"
    if any(X.is_meta for X in own.values()):
        return "on the meta device"
    if any(map(is_lazy, own.values())):
        return "without weights yet"
    if any(hasattr(X, "device_mesh") for X in own.values()):
        return "sharded over devices"
    if not own or not all(X.dtype.is_floating_point and X.dtype.itemsize > 1 for X in own.values()):
        return "quantised"
    if special := [type(X.data).__name__ for X in own.values() if type(X.data) is not torch.Tensor]:
        return f"held as {special[0]}"
    if others := [name for name in own if name not in PLAIN]:
        return f"adapted: it has {', '.join(others[:3])}, too"
    return ""


def call(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a model as its users do, without gradients."""
    with torch.no_grad():
        return model(*args, **kwargs)


def arguments(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of a module by name."""
    whole = getattr(module, "_orig_mod", module)  # of a compiled one
    return arguments_by_name(whole.forward, args, kwargs)


class _Mode(TorchFunctionMode):
    """The functions of PyTorch meanwhile: without dropout, and told to a listener."""

    def __init__(self, listener: Listener, functions: Functions) -> None:
        self.listener, self.functions = listener, functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUT:
            return args[0] if args else kwargs["input"]
        if func in KERNELS:
            args = (*args[:PLACE], 0.0, *args[PLACE + 1 :]) if len(args) > PLACE else args
            kwargs |= {"dropout_p": 0.0} if "dropout_p" in kwargs else {}
            read = functools.partial(KERNELS[func], *args, **kwargs)
            return self.functions.call(func, args, kwargs, read, torch.Tensor.detach)
        if self.functions.inside:
            return func(*args, **kwargs)
        if func in SOFTMAX:
            self.listener.note_pooling("softmax", args[0].ndim if args else kwargs["input"].ndim)
        elif func in LAYERS:
            self.listener.note_pooling(func.__name__, 4)
            place = [*inspect.signature(func).parameters].index("dropout_p")
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


@contextlib.contextmanager
def watching(model: Any, listener: Listener) -> Iterator[None]:
    """Tell a listener of each call of each module; dropout, compilers and the fast path are off meanwhile."""
    handles = []
    fast = torch.backends.mha.get_fastpath_enabled()

    try:
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(functools.partial(listener.enter, path), with_kwargs=True))
            after = _after(path, listener)
            handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
        torch.backends.mha.set_fastpath_enabled(False)
        own = listen_to_bases(CALLS, "forward", [*model.modules()], listener)
        functions = Functions(listener)
        with torch.compiler.set_stance("force_eager"), own, functions.watching(), _Mode(listener, functions):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()


def _after(path: str, listener: Listener) -> Any:
    return lambda module, args, kwargs, output: listener.leave(path, output)


def attention(module: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a framework's own layer by our names."""
    found = {name: given[argument] for name, argument in INPUTS.items()}
    if any(X.ndim != 3 for X in found.values()):
        raise ValueError(f"query has {given['query'].ndim} axes, expected 3 for a batch")
    padding, pairs = given.get("key_padding_mask"), given.get("attn_mask")
    if given.get("is_causal"):
        _require_order(pairs)
    if padding is not None:
        padding = padding[:, None, None]  # (B, 1, 1, K)
    if pairs is not None:
        pairs = pairs[None] if pairs.ndim == 2 else pairs.unflatten(0, (-1, module.num_heads))
        pairs = pairs[:, None] if pairs.ndim == 3 else pairs  # (B or 1, H or 1, Q, K)
    for X in (padding, pairs):
        if X is not None:
            _hide(found, X.detach())
    return found | {"tokens_first": not module.batch_first}


def _hide(found: dict[str, Any], mask: torch.Tensor) -> None:
    """Add a mask (B or 1, H or 1, Q or 1, K): booleans, True = hidden, or numbers to add."""
    if mask.dtype is not torch.bool:
        low = mask <= LOW
        bias = of_any.to_numpy(mask.double().masked_fill(low, 0.0))
        found["score_bias"] = bias + found.get("score_bias", 0.0)
        mask = low
    seen = of_any.to_numpy(~mask)
    found["mask"] = seen & found.get("mask", True)


def _require_order(mask: torch.Tensor | None) -> None:
    """Raise ValueError unless a mask is the order of tokens, as is_causal=True says."""
    if mask is not None:
        hidden = mask if mask.dtype is torch.bool else mask <= LOW
        if (hidden != torch.ones_like(hidden).triu(1)).any() or (~hidden & (mask != 0)).any():
            raise ValueError("is_causal=True says that attn_mask is the order of the tokens, but it is another mask")


def alike(X: Any, output: Any) -> Any:
    """Convert an array of NumPy to one of PyTorch that is like another one."""
    return torch.as_tensor(X, dtype=output.dtype, device=output.device).reshape(output.shape)  # (B, Q, D), or as it was
