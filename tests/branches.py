"""The sides of the branches in a backend's engine, and the tests that take each: `python tests/branches.py torch`.

A branch is the test of an `if`, of a conditional expression or of a comprehension, and every part of an `and` or `or`;
it has two sides. The engine is imported with a note at each, the tests run, and the first test that takes a side is
listed. Exit code 1 if one is taken by none, and `ELSEWHERE` does not say why.
"""

import ast
import importlib.abc
import importlib.machinery
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ("alone", "bounds", "blocks", "calls", "poolings")
# Sides that none of these tests takes: by the backend, a part of the text, and why.
ELSEWHERE: dict[str, dict[str, str]] = {
    "numpy": {},
    "torch": {
        "torch.jit.is_tracing() is True": "a plan is not made while torch traces",
        "getattr(bias, 'requires_grad', None) is False": "a bias of torch's own, which the calls here give as NumPy's",
        "X.is_nested is True": "such arrays are refused",
        "X.layout != torch.strided is True": "such arrays are refused",
        "call.extremes is not None is False": "lengths whose values a transform of torch hides",
        "_minimum: isinstance(Y, int) is False": "lengths beside an order, whose values only a compiler hides",
        "_may_recompute: torch.compiler.is_compiling() is True": "a compiled call in blocks",
    },
    "mxnet": {
        "call.training is None is True": "MXNet's own state of training, of a layer that is called in blocks",
        "drawn.seed is not None is False": "dropout at once, in test_dropout.py",
        "backward: own is True": "MXNet 2.0 gives its new kind of array; the tests run 1.9",
    },
}


class Noted(ast.NodeTransformer):
    """Puts a note around the test of every branch in a module."""

    def __init__(self, file):
        self.file, self.functions, self.texts = file, [], []

    def visit_FunctionDef(self, node):
        self.functions.append(node.name)
        node = self.generic_visit(node)
        self.functions.pop()
        return node

    def visit_If(self, node):
        test = self.noted(node.test)
        node = self.generic_visit(node)
        node.test = test(node.test)
        return node

    def visit_IfExp(self, node):
        return self.visit_If(node)

    def visit_While(self, node):
        return self.visit_If(node)

    def visit_comprehension(self, node):
        tests = [*map(self.noted, node.ifs)]
        node = self.generic_visit(node)
        node.ifs = [note(test) for note, test in zip(tests, node.ifs, strict=True)]
        return node

    def visit_BoolOp(self, node):
        *notes, last = [*map(self.noted, node.values)]
        node = self.generic_visit(node)
        *values, value = node.values
        node.values = [*(note(test) for note, test in zip(notes, values, strict=True)), last(value, last=True)]
        return node

    def noted(self, test):
        """What puts a note around a test, whose text is of now; last: whether nobody may ask if its value is true."""
        if isinstance(test, ast.BoolOp):
            return lambda changed, last=False: changed  # its parts have notes
        text = f"{self.file}, {self.functions[-1] if self.functions else 'module'}: {ast.unparse(test)}"
        self.texts.append(text)
        name = ast.Name("_note", ast.Load())
        return lambda changed, last=False: ast.Call(name, [ast.Constant(text), changed, ast.Constant(last)], [])


class Branches(importlib.abc.MetaPathFinder):
    """Imports the engine of a backend with notes, and remembers by which test each side was first taken; a plugin."""

    def __init__(self, backend):
        self.room, self.test, self.taken = f"mha.backends.{backend}.engine.", "", {}
        self.texts, self.values = [], set()  # values: the texts of what ends an `and` or `or`

    def find_spec(self, name, path, target=None):
        if not name.startswith(self.room):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(spec.loader.name, spec.loader.path, self)
        return spec

    def note(self, text, value, last):
        """Remember which side a value takes, and give it back."""
        if last:
            self.values.add(text)
        if not last or type(value) is bool:
            self.taken.setdefault((text, bool(value)), self.test)
        return value

    def pytest_runtest_setup(self, item):
        self.test = item.nodeid.rpartition("/")[2]


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with notes at its branches."""

    def __init__(self, name, path, branches):
        super().__init__(name, path)
        self.branches = branches

    def get_code(self, name):
        noted = Noted(Path(self.path).name)
        tree = noted.visit(ast.parse(self.get_source(name)))
        self.branches.texts += noted.texts
        return compile(ast.fix_missing_locations(tree), self.path, "exec")

    def exec_module(self, module):
        module._note = self.branches.note
        super().exec_module(module)


def main(backend):
    """Run the tests of a backend, print who takes which side, and return the sides that no test takes."""
    branches = Branches(backend)
    sys.meta_path.insert(0, branches)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    options = ["-p", "no:cacheprovider", "-p", "no:terminal", "--backends", backend]
    code = pytest.main([*options, *(str(ROOT / "tests" / f"test_{name}.py") for name in TESTS)], [branches])
    if code != pytest.ExitCode.OK:
        sys.exit(f"the tests ended with {code!r}")
    untaken, elsewhere = [], ELSEWHERE[backend]
    used = set()
    for text in dict.fromkeys(branches.texts):
        sides = [branches.taken.get((text, side)) for side in (True, False)]
        if sides == [None, None] and text in branches.values:
            continue  # a value that is no boolean
        for side in (True, False):
            line = f"{text} is {side}"
            test = branches.taken.get((text, side))
            reasons = [part for part in elsewhere if part in line]
            print(f"{line}: {test or [elsewhere[part] for part in reasons] or 'NO TEST'}")
            if test is None:
                used.update(reasons)
                untaken += [] if reasons else [line]
    untaken += [f"{part!r} is in ELSEWHERE, and a test takes it" for part in elsewhere if part not in used]
    return untaken


if __name__ == "__main__":
    sys.exit("\n".join(main(sys.argv[1])) or None)
