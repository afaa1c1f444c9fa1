"""The listener interface: a framework's adapter calls `enter` and `leave` around every module of a model.

Each adapter, `mha/models/frameworks/<framework>.py`, has these functions:
    prepare(model, args, kwargs) -> the object that the functions below take as the model
    modules(model) -> the modules of a model by their paths, itself as "", a shared one by each of its paths
    arrays(model) -> its arrays by their names
    odd(module) -> why the weights of a projection are no plain arrays, in words; "" if they are
    call(model, *args, **kwargs) -> call a model as its users do, without gradients
    arguments(module, args, kwargs) -> the arguments of a call of a module by their names
    alike(X, output) -> an array of NumPy as one of the framework, of the dtype and on the device of another one
    watching(model, listener) -> a context that tells the listener of all calls, without dropout and compilers
and, of a framework that has attention layers of its own,
    CALLS: the classes of these layers, each with the arguments that are read, an `own_layers.Arguments`
    attention(module, arguments) -> a call of one of these layers by our names: queries, keys, values, further
        arguments, and tokens_first=True if the batch is not their first axis; ValueError if an argument or a state of
        it is not read
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from mha.models.audit.calls.kernel_call import KernelCall, Read


class Listener(Protocol):
    """The receiver of the calls of a model's modules, in the order in which they happen."""

    def enter(self, path: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the arguments of a call of the module at this path, before it runs."""

    def leave(self, path: str, output: Any) -> Any:
        """Take its output, None if it failed; return None, or the output to go on with."""

    def inner(self, module: Any, given: dict[str, Any]) -> None:
        """Take the arguments, by name, with which a framework's own layer runs."""

    def note_pooling(self, function: str, axes: int, path: str | None = None) -> None:
        """Note a softmax, or a kernel of attention that is not judged, and the number of axes of its input.

        path: of the module that runs it, None = the innermost one that is being called.
        """

    def enter_kernel(self, function: str, axes: int, read: Read) -> KernelCall | None:
        """Take a call of a kernel of attention before it runs; None if it is not judged.

        axes: the number of axes of its queries; read: reads its arguments.
        """

    def leave_kernel(self, call: KernelCall, output: Any) -> None:
        """Take what left a kernel, in the layout of its arguments."""

    def note_no_numbers(self, path: str, reason: str) -> None:
        """Note that the module at a path was called with arrays whose numbers are not known."""


@contextlib.contextmanager
def replace_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute meanwhile; one that was inherited is inherited again."""
    own: Any = vars(owner)
    had, kept = name in own, own.get(name)
    if isinstance(own, dict):  # directly, as Keras tracks attributes
        put, drop = own.__setitem__, own.__delitem__
    else:
        put, drop = functools.partial(setattr, owner), functools.partial(delattr, owner)
    put(name, value)
    try:
        yield
    finally:
        if had:
            put(name, kept)
        else:
            drop(name)


def listen_to_call(run: Any, path: str, module: Any, listener: Listener) -> Any:
    """Wrap a method so that a listener is told of each call."""

    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        listener.enter(path, module, args, kwargs)
        output = None
        try:
            output = run(*args, **kwargs)
        finally:
            instead = listener.leave(path, output)
        return output if instead is None else instead

    vars(call).pop("__signature__", None)  # that of a method's function, which takes self, too
    return call


@contextlib.contextmanager
def listen_to_bases(kinds: Iterable[Any], name: str, modules: Collection[Any], listener: Listener) -> Iterator[None]:
    """Tell a listener the arguments of the framework's own layers; name: of the method."""
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            if any(isinstance(module, kind) for module in modules):
                stack.enter_context(replace_attribute(kind, name, listen_to_base_call(getattr(kind, name), listener)))
        yield


def listen_to_base_call(run: Any, listener: Listener) -> Any:
    """Wrap a method of a class so that a listener is told the arguments of each call."""

    @functools.wraps(run)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener.inner(self, arguments_by_name(functools.partial(run, self), args, kwargs))
        return run(self, *args, **kwargs)

    return call


def listen_to_pooling(run: Any, name: str, listener: Listener) -> Any:
    """Wrap a function that makes attention weights, so that a listener is told of each call."""

    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        X = next(X for X in (*args, *kwargs.values()) if hasattr(X, "shape"))
        listener.note_pooling(name, len(X.shape))
        return run(*args, **kwargs)

    return call


def listen_to_kernel(run: Any, read: Callable[..., dict[str, Any]], listener: Listener) -> Any:
    """Wrap a kernel of attention, so that a listener is told what enters and leaves it; read: reads its arguments."""

    @functools.wraps(run)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        X = next(X for X in (*args, *kwargs.values()) if hasattr(X, "shape"))
        call = listener.enter_kernel(run.__name__, len(X.shape), functools.partial(read, *args, **kwargs))
        output = run(*args, **kwargs)
        if call is not None:
            listener.leave_kernel(call, output)
        return output

    return kernel


def why_not_plain(arrays: Mapping[str, Any], is_float: Callable[[Any], bool], plain: tuple[str, ...]) -> str:
    """Say why the arrays of a projection are not the plain ones of these names, in floats; "" if they are."""
    if any("lora" in name.lower() for name in arrays):
        return "adapted"
    if not arrays or not all(map(is_float, arrays.values())):
        return "quantised"
    others = [name for name in arrays if name not in plain]
    return f"adapted: it has {', '.join(others[:3])}, too" if others else ""


def arguments_by_name(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; if they do not fit it, the named ones alone."""
    signature = inspect.signature(function)
    try:
        bound = dict(signature.bind_partial(*args, **kwargs).arguments)
    except TypeError:  # the call itself will say what is wrong
        return dict(kwargs)
    rest = [name for name, one in signature.parameters.items() if one.kind is one.VAR_KEYWORD and name in bound]
    return bound | {key: X for name in rest for key, X in bound.pop(name).items()}
