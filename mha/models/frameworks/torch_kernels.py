"""Read calls of PyTorch's kernels of attention, and of the attention functions of transformers.

Source: `AttentionInterface` of transformers 5.23. A model fetches one of its functions by name, or its own eager one; each
takes a module, heads (B, H, T, d), a mask and options by name, and returns the output as (B, Q, H, d).

Letters: B samples, H heads, T tokens (Q queries, K keys), d width of a head.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from mha import arrays
from mha.models.audit.calls.kernel_call import hide_or_add
from mha.models.audit.calls.listener import Listener, replace_attribute

GIVEN = ("module", "query", "key", "value", "attention_mask")  # the first arguments of transformers' functions
READ = ("scaling", "softcap", "position_bias", "is_causal", "sinks", "s_aux")
# What changes nothing: dropout is off, and an eager or fused function has the window in its mask, without packed texts.
IDLE = ("dropout", "sliding_window", "deterministic", "output_attentions", "training")


def read_fused(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> dict[str, Any]:
    """Read a call of `scaled_dot_product_attention`."""
    given = {"q": query, "k": key, "v": value, "causal": bool(is_causal), "scale": scale}
    return given | hide_or_add(*numpy_masks(attn_mask))


def read_flexible(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Read a call of `flex_attention`: its functions are evaluated at each pair of a query and a key."""
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = None if block_mask is None else visible_pairs(block_mask, (B, H, Q, K), query.device)
    given = {"q": query, "k": key, "v": value, "scale": scale}
    if score_mod is None:
        return given | hide_or_add(*numpy_masks(mask))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    keys = key.double().repeat_interleave(H // key.shape[1], 1)  # (B, H, K, d)
    scores = query.double() @ keys.mT * factor  # (B, H, Q, K)
    places = [torch.arange(n, device=query.device) for n in scores.shape]
    added = at_each_pair(score_mod, True)(scores, *places) - scores  # (B, H, Q, K)
    return given | hide_or_add(*numpy_masks(mask, added))


def visible_pairs(block_mask: Any, shape: tuple[int, ...], device: Any) -> torch.Tensor:
    """Return the pairs that a BlockMask shows, booleans (B, H, Q, K)."""
    places = [torch.arange(n, device=device) for n in shape]
    return at_each_pair(block_mask.mask_mod, False)(*places).expand(shape)


def at_each_pair(function: Any, of_scores: bool) -> Any:
    """Return a function of one pair as one of all pairs (B, H, Q, K); of_scores: whether it takes scores first."""
    for axis in reversed(range(4)):
        places = tuple(0 if at == axis else None for at in range(4))
        function = torch.vmap(function, (0, *places) if of_scores else places)
    return function


def read_function(function: Any, eager: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Read a call of a function of transformers; eager: whether it is that of the model's own file."""
    names = [*GIVEN, *list(inspect.signature(function).parameters)[len(GIVEN) :]]
    given = dict(zip(names, args, strict=False)) | kwargs
    module, query, key, value, mask = (given.pop(name, None) for name in GIVEN)
    if "flash" in function.__name__ or "paged" in function.__name__:
        raise ValueError(f"{function.__name__} is not read")
    for name in names[len(GIVEN) :]:
        if name not in (*READ, *IDLE) and given.get(name) is not None:
            raise ValueError(f"argument {name} of {function.__name__} is not read")
    found = {"q": query, "k": key, "v": value, "scale": given.get("scaling"), "softcap": given.get("softcap")}
    if isinstance(mask, flex.BlockMask):
        mask = visible_pairs(mask, (*query.shape[:3], key.shape[2]), query.device)
    elif mask is None and not eager:
        causal = given.get("is_causal")
        found["causal"] = query.shape[2] > 1 and bool(getattr(module, "is_causal", True) if causal is None else causal)
    mask = None if mask is None else mask[..., : key.shape[2]]
    sinks = next((X for X in (given.get("s_aux"), given.get("sinks"), getattr(module, "sinks", None)) if X is not None), None)
    if sinks is not None:
        if sinks.numel() != query.shape[1]:
            raise ValueError(f"sinks have shape {tuple(sinks.shape)}, expected one for each head of queries")
        found["sinks"] = sinks.detach().reshape(-1)  # (H,)
    return found | hide_or_add(*numpy_masks(mask, given.get("position_bias")))


def numpy_masks(*masks: Any) -> list[Any]:
    """Return masks as arrays of NumPy; of None, None."""
    return [None if X is None else arrays.to_numpy(X.detach()) for X in masks]


KERNELS = {functional.scaled_dot_product_attention: read_fused}


class Functions:
    """The calls of kernels that a listener is told of; inside: how many functions of transformers are running."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.inside = listener, 0

    def call(self, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Any, turn: Any) -> Any:
        """Call a kernel, and tell of it; turn: from what it returns to its output (B, H, Q, d)."""
        query = next(X for X in (*args, *kwargs.values()) if isinstance(X, torch.Tensor))
        call = None if self.inside else self.listener.enter_kernel(name_of(run), query.ndim, read)
        self.inside += 1
        try:
            output = run(*args, **kwargs)
        finally:
            self.inside -= 1
        if call is not None:
            self.listener.leave_kernel(call, turn(output))
        return output

    def fetch(self, run: Any, interface: Any, name: Any, default: Any) -> Any:
        """Fetch a function of transformers, which tells of its calls."""
        function = run(interface, name, default)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs |= {"dropout": 0.0} if "dropout" in kwargs else {}
            read = functools.partial(read_function, function, function is default, args, kwargs)
            return self.call(function, args, kwargs, read, lambda output: output[0].detach().transpose(1, 2))

        return call

    def flexible(self, run: Any) -> Any:
        """Wrap `flex_attention`, so that it tells of its calls."""

        @functools.wraps(run)
        def call(*args: Any, **kwargs: Any) -> Any:
            read = functools.partial(read_flexible, *args, **kwargs)
            return self.call(run, args, kwargs, read, lambda output: first(output).detach())

        return call

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Tell of what is no function of PyTorch's own mode meanwhile."""
        with contextlib.ExitStack() as stack:
            if (library := sys.modules.get("transformers.modeling_utils")) is not None:
                run = library.AttentionInterface.get_interface
                fetch = lambda interface, attn_implementation, default: self.fetch(  # noqa: E731
                    run, interface, attn_implementation, default
                )
                stack.enter_context(replace_attribute(library.AttentionInterface, "get_interface", fetch))
            loaded = [one for one in list(sys.modules.values()) if hasattr(one, "__dict__")]
            for place, name in [(one, key) for one in loaded for key, X in list(vars(one).items()) if is_flexible(X)]:
                stack.enter_context(replace_attribute(place, name, self.flexible(getattr(place, name))))
            yield


def is_flexible(X: Any) -> bool:
    """Whether an object is `flex_attention`, or what a compiler makes of it."""
    own = flex.flex_attention
    return X is own or (callable(X) and getattr(X, "_torchdynamo_orig_callable", None) is own)


def first(output: Any) -> Any:
    """Return the first of several outputs."""
    return output[0] if isinstance(output, tuple) else output


def name_of(function: Any) -> str:
    """Return the name of a function."""
    return getattr(function, "__name__", type(function).__name__)
