"""Read calls of PyTorch's kernels of attention, and of the attention functions of transformers.

Source: `AttentionInterface` of transformers 5.23. A model fetches one of its functions by name, or its own eager one;
each takes a module, heads (B, H, T, d), a mask and options by name, and returns the output as (B, Q, H, d).

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
    return given | hide_or_add(attn_mask)


def read_flexible(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: float,
    *options: Any,
) -> dict[str, Any]:
    """Read a call of what runs in `flex_attention`: its functions are evaluated at each pair of a query and a key."""
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = visible_pairs(block_mask[-1], (B, H, Q, K), query.device)
    given = {"q": query, "k": key, "v": value, "scale": scale}
    keys = key.double().repeat_interleave(H // key.shape[1], 1)  # (B, H, K, d)
    scores = query.double() @ keys.mT * scale  # (B, H, Q, K)
    places = [torch.arange(n, device=query.device) for n in scores.shape]
    added = at_each_pair(score_mod, True)(scores, *places) - scores  # (B, H, Q, K)
    return given | hide_or_add(mask, added)


def visible_pairs(mask_mod: Any, shape: tuple[int, ...], device: Any) -> torch.Tensor:
    """Return the pairs that the function of a BlockMask shows, booleans (B, H, Q, K)."""
    places = [torch.arange(n, device=device) for n in shape]
    return at_each_pair(mask_mod, False)(*places).expand(shape)


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
        mask = visible_pairs(mask.mask_mod, (*query.shape[:3], key.shape[2]), query.device)
    elif mask is None and not eager:
        causal = given.get("is_causal")
        found["causal"] = query.shape[2] > 1 and bool(getattr(module, "is_causal", True) if causal is None else causal)
    mask = None if mask is None else mask[..., : key.shape[2]]
    every = given.get("s_aux"), given.get("sinks"), getattr(module, "sinks", None)
    if (sinks := next((X for X in every if X is not None), None)) is not None:
        if sinks.numel() != query.shape[1]:
            raise ValueError(f"sinks have shape {tuple(sinks.shape)}, expected one for each head of queries")
        found["sinks"] = sinks.reshape(-1)  # (H,)
    return found | hide_or_add(mask, given.get("position_bias"))


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

    def fetching(self, run: Any) -> Any:
        """Wrap the method that fetches a function of transformers, so that this tells of its calls."""

        @functools.wraps(run)
        def fetch(interface: Any, attn_implementation: str, default: Any) -> Any:
            function = run(interface, attn_implementation, default)

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                kwargs |= {"dropout": 0.0} if "dropout" in kwargs else {}
                read = functools.partial(read_function, function, function is default, args, kwargs)
                return self.call(function, args, kwargs, read, lambda output: output[0].detach().transpose(1, 2))

            return call

        return fetch

    def flexible(self, run: Any, *args: Any) -> Any:
        """Run what `flex_attention` runs, however it is compiled, and tell of it."""
        return self.call(run, args, {}, functools.partial(read_flexible, *args), lambda output: output[0].detach())

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Tell of what is no function of PyTorch's own mode meanwhile."""
        with contextlib.ExitStack() as stack:
            if (library := sys.modules.get("transformers.modeling_utils")) is not None:
                own = library.AttentionInterface
                stack.enter_context(replace_attribute(own, "get_interface", self.fetching(own.get_interface)))
            run = functools.partial(self.flexible, flex.flex_attention_hop)
            stack.enter_context(replace_attribute(flex, "flex_attention_hop", run))
            yield


def name_of(function: Any) -> str:
    """Return the name of a function."""
    return getattr(function, "__name__", type(function).__name__)
