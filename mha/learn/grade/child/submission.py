"""Load a submission statement by statement: an error is remembered, and the statements after it still run."""

import ast
import importlib
import linecache
import operator
import sys
import traceback
import types
from typing import Any

from .guard import RefusedError

NAME = "submission"
# Of the book, by framework: the module of its functions of arrays, those with other names there, and base classes.
BOOK: dict[str, tuple[str, dict[str, str]]] = {
    "torch": ("torch", {}),
    "jax": ("jax.numpy", {"tensor": "array"}),
    "tensorflow": ("tensorflow", {"tensor": "constant", "arange": "range"}),
    "mxnet": ("mxnet.numpy", {"tensor": "array"}),
}
BASES = {"torch": "nn.Module", "tensorflow": "keras.Model", "mxnet": "gluon.nn.Block"}


class FailureError(Exception):
    """Why a level of a submission cannot be run; kind: "missing", or "wrong" where it fits no convention."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def load(path: str) -> tuple[types.ModuleType, str]:
    """Run a file as a module; return it, and the error of its first failing statement in words, "" = none."""
    with open(path, encoding="utf-8", errors="replace") as file:
        source = file.read()
    module = types.ModuleType(NAME)
    module.__file__ = path
    sys.modules[NAME] = module
    linecache.getlines(path)
    problem = ""
    try:
        tree = ast.parse(source, path)
    except (SyntaxError, ValueError) as error:
        at = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        return module, f"{type(error).__name__}{at}: {error.args[0]}"
    for statement in tree.body:
        try:
            exec(compile(ast.Module([statement], []), path, "exec", dont_inherit=True), vars(module))
        except Exception as error:
            problem = problem or describe_error(error, path)
    return module, problem


def describe_error(error: BaseException, path: str) -> str:
    """Describe an error in one line, with the last line of the submission that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    text = (str(error).strip().splitlines() or [""])[0][:300]
    name = "" if isinstance(error, RefusedError) else f"{type(error).__name__}{': ' * bool(text)}"
    where = f" (line {frames[-1].lineno}, in {frames[-1].name})" if frames and frames[-1].lineno else ""
    return f"{name}{text}{where}"


def imitate_the_book(module_of: Any) -> None:
    """Let `from d2l import torch as d2l` give what the book's classes need, and the submission's own names.

    module_of: a function that returns the submission's module.
    """
    package = types.ModuleType("d2l")
    package.__path__ = []
    sys.modules["d2l"] = package
    for name in BOOK:
        book = _Book(name, module_of)
        setattr(package, name, book)
        sys.modules[f"d2l.{name}"] = book


class _Book(types.ModuleType):
    """The book's package for one framework: a base class, a decorator, arrays, and what the submission defines."""

    def __init__(self, framework: str, module_of: Any) -> None:
        super().__init__(f"d2l.{framework}")
        self._framework, self._module_of = framework, module_of

    def __getattr__(self, name: str) -> Any:
        own = vars(self._module_of()).get(name) if self._module_of() else None
        if own is not None and own is not self:
            return own
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "Module":
            return _base(self._framework)
        if name == "add_to_class":
            return lambda cls: lambda thing: setattr(cls, thing.__name__, thing)
        if name in ("tensor", "ones", "zeros", "reshape", "float32", "int32", "arange", "matmul", "exp"):
            module, others = BOOK[self._framework]
            return getattr(importlib.import_module(module), others.get(name, name))
        if name in ("check_shape", "show_heatmaps", "plot", "use_svg_display", "set_figsize"):
            return lambda *given, **named: None
        raise AttributeError(f"d2l.{name} is not there: write it yourself, or leave it out")


def _base(framework: str) -> Any:
    """The book's base class, with a save_hyperparameters that keeps the arguments."""
    if framework == "jax":
        from flax import linen

        return linen.Module

    def save_hyperparameters(self: Any, ignore: Any = ()) -> None:
        frame = sys._getframe(1)
        for name, value in frame.f_locals.items():
            if name not in ("self", "__class__", *ignore) and not name.startswith("_"):
                setattr(self, name, value)

    parent = operator.attrgetter(BASES[framework])(importlib.import_module(framework))
    return type("Module", (parent,), {"save_hyperparameters": save_hyperparameters})
