"""Call a kernel: queries, keys and values by position, all else by the names that it has for them."""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.names import BackendName
from mha.parity.testing.kernels.kernel_cases import Arrays

# What a kernel may be given beside queries, keys and values, by our name, and the names of its parameters for it.
ARGUMENTS = {
    "causal": ("causal", "is_causal"),
    "window": ("window", "window_size"),
    "scale": ("scale", "sm_scale", "softmax_scale"),
    "softcap": ("softcap", "logits_soft_cap"),
    "mask": ("mask", "attn_mask"),
    "bias": ("bias", "score_bias", "attn_bias"),
    "lengths": ("lengths", "kv_lengths", "key_value_seq_lengths"),
    "sinks": ("sinks", "s_aux"),
    "cu_seqlens": ("cu_seqlens", "cu_seqlens_q"),
    "cu_seqlens_k": ("cu_seqlens_k",),
    "max_seqlen": ("max_seqlen", "max_seqlen_q"),
    "max_seqlen_k": ("max_seqlen_k",),
    "cotangent": ("cotangent",),
}
OPTION_OF = {name: option for option, names in ARGUMENTS.items() for name in names}
PACKING = ("cu_seqlens", "cu_seqlens_k", "max_seqlen", "max_seqlen_k")
OF_BACKWARD = ("q", "k", "v", "output", "lse")  # what a backward pass may name, too
GRADIENTS = ("dq", "dk", "dv")
OPEN = -1  # a side of `window_size` without a bound
# Defaults of parameters that switch an option off; with others, a kernel is told that it is off.
OFF = (None, False, 0, (OPEN, OPEN), (None, None))
STRIDED: tuple[BackendName, ...] = ("numpy", "torch")  # arrays have strides, and memory around them
AROUND = 8  # numbers before and after each row, enough to keep rows aligned


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Somebody's kernel, or its backward pass: a function and its parameters by our names of them.

    rest: whether it takes any others by name, as `**kwargs`.
    """

    name: str
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]
    rest: bool = False

    def needs(self, option: str) -> bool:
        """Return whether it has a parameter for an option, without a default."""
        return option in self.parameters and self.parameters[option].default is inspect.Parameter.empty

    def spell(self, options: Mapping[str, Any], width: int) -> dict[str, Any]:
        """Return arguments by the kernel's own names; what is off is left out, or said where its default differs."""
        found = {}
        for option, parameter in self.parameters.items():
            value = options.get(option)
            if option == "window" and parameter.name == "window_size":
                value = tuple(OPEN if side is None else side for side in value or (None, None))
            elif option == "window" and value is None and self.needs(option):
                value = (None, None)
            elif option == "causal":
                value = bool(value)
            elif option == "scale" and value is None and parameter.default is not None:
                value = width**-0.5
            elif option == "softcap" and value is None and isinstance(parameter.default, (int, float)):
                value = 0.0
            is_off = any(value is off or value == off for off in OFF) if not hasattr(value, "shape") else False
            if not (is_off and parameter.default in OFF):
                found[parameter.name] = value
        return found


def read_kernel(argument: str, given: Any, takes: Collection[str] | None, inputs: tuple[str, ...] = ()) -> Kernel:
    """Find out by which names a kernel is called; takes: as of `assert_kernel`.

    inputs: what it is given by name beside the options; () = its first three parameters are queries, keys and values.
    Raises TypeError or ValueError if there is no way to call it.
    """
    must_be_function(argument, given)
    name = getattr(given, "__qualname__", None) or getattr(given, "__name__", None) or type(given).__name__
    taken = takes or ()
    try:
        shown = getattr(given, "forward", getattr(given, "call", given))  # of modules of PyTorch, and layers of Keras
        parameters = list(inspect.signature(shown).parameters.values())
    except ValueError as error:
        if takes is None:
            raise TypeError(
                f"{argument} {name} shows no parameters: list in takes= those of {', '.join(OPTION_OF)} that it takes, "
                "() = none"
            ) from error
        return Kernel(name, given, by_option(argument, name, [], taken))
    rest = parameters if inputs else after_inputs(argument, name, parameters)
    named = [one for one in rest if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    any_name = any(one.kind is one.VAR_KEYWORD for one in rest)
    if not any_name and (lacks := {*taken} - {one.name for one in named}):
        raise ValueError(f"takes has {', '.join(sorted(lacks))}, but {argument} {name} has neither these nor **kwargs")
    needed = [one.name for one in named if one.default is one.empty and one.name not in (*OPTION_OF, *inputs)]
    if needed:
        raise TypeError(
            f"{argument} {name} needs {', '.join(needed)}, expected one of {', '.join((*inputs, *OPTION_OF))}; give it "
            "a default, or pass a function that calls it"
        )
    return Kernel(name, given, by_option(argument, name, named, taken, inputs), any_name)


def must_be_function(argument: str, given: Any) -> None:
    """Raise TypeError if it is no function."""
    if not callable(given):
        raise TypeError(f"{argument} is {checks.brief(given)}, expected a function")


def after_inputs(argument: str, name: str, parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters after queries, keys and values."""
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 3 and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        raise TypeError(f"{argument} {name} has {len(positional)} parameters by position, expected q, k, v first")
    return [one for one in parameters if one not in positional[:3]]


def by_option(
    argument: str, name: str, named: list[inspect.Parameter], taken: Collection[str], inputs: tuple[str, ...] = ()
) -> dict[str, inspect.Parameter]:
    """Return parameters by our names; those that are only listed in `taken` have no default that is known."""
    keyword, known = inspect.Parameter.KEYWORD_ONLY, {one.name for one in named}
    found: dict[str, inspect.Parameter] = {}
    for one in (*named, *(inspect.Parameter(other, keyword) for other in taken if other not in known)):
        option = one.name if one.name in inputs else OPTION_OF.get(one.name)
        if option in found:
            raise TypeError(f"{argument} {name} names {found[option].name} and {one.name}, expected one of them")
        if option is not None:
            found[option] = one if one.name in known else one.replace(default=None if option != "scale" else one.empty)
    return found


def parameter_names(name: str, value: Any) -> tuple[str, ...]:
    """Names of parameters that are known."""
    if isinstance(value, str) or not isinstance(value, Collection):
        raise TypeError(f"{name} is {checks.brief(value)}, expected the names of parameters, such as ('attn_mask',)")
    return tuple(checks.choice(name, one, tuple(OPTION_OF), {}) for one in value)


@dataclasses.dataclass(frozen=True)
class Placed:
    """An array of the framework as a kernel gets it, and the whole memory in which it lies."""

    X: Any
    memory: Any
    before: bytes  # of the memory, before the kernel ran


def place(backend: BackendName, X: np.ndarray, layout: str, memory: str, device: Any = None) -> Placed:
    """Make an array of the framework from one in a layout; memory: as of a `KernelCase`."""
    module, heads, tokens = dispatch.load(backend), layout.index("H"), layout.index("T")
    if memory == "NaN around":
        wide = [(0, 0)] * (X.ndim - 1) + [(AROUND, AROUND)]
        wide[tokens] = 1, 1
        inside = tuple(slice(before, -after if after else None) for before, after in wide)
        whole = module.tensor(np.pad(X.astype(np.float64), wide, constant_values=np.nan).astype(X.dtype), device)
        placed = whole[inside]
    elif memory == "transposed":
        whole = module.tensor(np.array(X.swapaxes(heads, tokens), order="C"), device)
        placed = whole.swapaxes(heads, tokens)
    elif memory == "stride 0":
        whole = module.tensor(np.array(X.take([0], heads)), device)
        placed = whole.expand(X.shape) if hasattr(whole, "expand") else np.broadcast_to(whole, X.shape)
    else:
        placed = whole = module.tensor(np.array(X, order="C"), device)
    return Placed(placed, whole, module.to_numpy(whole).tobytes())


def leave_nan_in_freed_memory(backend: BackendName, X: np.ndarray, device: Any) -> None:
    """Fill memory of an array's size with NaN and free it, so that the next array of this size may have it."""
    wrong = np.full(X.shape, np.nan).astype(X.dtype)
    del [dispatch.load(backend).tensor(wrong.copy(), device) for _ in range(4)][:]


def changed(backend: BackendName, placed: Mapping[str, Placed]) -> list[str]:
    """List the inputs whose memory, or what is around it, a kernel has changed."""
    to_numpy = dispatch.load(backend).to_numpy
    return [name for name, one in placed.items() if to_numpy(one.memory).tobytes() != one.before]


def lengths_of_texts(arrays: Arrays) -> dict[str, int]:
    """Return the arguments of a packed call that say how long its longest text is."""
    pairs = {"max_seqlen": "cu_seqlens", "max_seqlen_k": "cu_seqlens_k"}
    return {name: int(np.diff(arrays[ends]).max()) for name, ends in pairs.items() if ends in arrays}
