"""What takes the calls of the modules of a model, which `commands/taps.py` of each backend tells.

Each backend's `commands/taps.py` has these functions:
    modules(model) -> the modules of a model by their paths
    arrays(model, args) -> its arrays by their names
    odd(module) -> why the weights of a projection are no plain arrays, in words; "" if they are
    call(model, *args, **kwargs) -> call a model as its users do, without gradients
    arguments(module, args, kwargs) -> the arguments of a call of a module by their names
    attention(module, arguments, output) -> a call of one of the framework's own layers, by our names: queries, keys,
        values, output, and what else a call of ours takes
    alike(X, output) -> an array of NumPy as one of the framework, of the dtype and at the device of another one
    watching(model, sink) -> a context in which a sink is told, without dropout, and without what is compiled
"""

from typing import Any, Protocol


class Sink(Protocol):
    """What is told of the calls of modules, in the order in which they happen."""

    def enter(self, path: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the arguments of a call of the module at this path, before it."""

    def leave(self, path: str, output: Any) -> Any:
        """Take the output of that call, None if it failed; return None, or the output to go on with."""

    def pooled(self, function: str, axes: int) -> None:
        """Take note of a softmax or a fused kernel, and of the number of axes of what it takes."""
