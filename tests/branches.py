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
TESTS = (
    "layer/test_alone.py",
    "layer/test_bounds.py",
    "layer/test_blocks.py",
    "layer/test_calls.py",
    "layer/test_poolings.py",
)
# Of a backend, tests that take what those do not.
MORE: dict[str, tuple[str, ...]] = {
    "torch": (
        "layer/test_bad_inputs.py::test_arrays_that_are_not_dense_or_lie_elsewhere_are_refused",
        "layer/test_compiled.py::test_a_trace_of_torch_takes_other_lengths",
        "layer/test_compiled.py::test_mapped_over_samples",
        "layer/test_memory.py::test_a_bias_that_needs_a_gradient_keeps_no_scores",
    ),
    "tensorflow": (
        "layer/test_tensorflow_calls.py",
        "layer/test_vjp.py",
        "layer/test_compiled.py::test_compiled_padding_does_not_matter",
        "layer/test_compiled.py::test_mapped_over_samples",
        "layer/test_odd_inputs.py::test_lengths_above_all_keys_hide_nothing",
    ),
    "jax": (
        "layer/test_programs.py",
        "layer/test_own_model.py::test_the_layer_brings_its_weights_into_a_model",
        "layer/test_dropout_pieces.py::test_rate_scale_and_independence_in_pieces",
        "layer/test_memory.py::test_one_head_of_keys_takes_no_more_memory_than_all",
    ),
    "mxnet": ("layer/test_dropout.py::test_the_same_seed_drops_the_same_weights",),
}
DEVICES = "samples on several devices, in test_devices_of_jax.py, whose calls another process makes"
# Sides that no test can take here: by the backend, a part of the text, and why.
ELSEWHERE: dict[str, dict[str, str]] = {
    "jax": {
        "n == 1 is False": DEVICES,
        "pool_pieces: own[name] is": DEVICES,
        "pool_pieces: is_own is": DEVICES,
        "together is True": DEVICES,
        "mesh.empty is False": DEVICES,
        "devices: varies(X) is": DEVICES,
        "hasattr(kind, 'vma') is False": DEVICES,
        "hasattr(kind, 'vma') is True": "JAX before 0.10 has it; the tests run 0.10",
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
        self.room, self.test, self.taken = f"mha.backends.{backend}.engine.", "the import", {}
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
    options = ["-p", "no:cacheprovider", "-p", "no:terminal", "--quick-xla", "--backends", backend]
    tests = *TESTS, *MORE.get(backend, ())
    code = pytest.main([*options, *(str(ROOT / "tests" / name) for name in tests)], [branches])
    if code != pytest.ExitCode.OK:
        sys.exit(f"the tests ended with {code!r}")
    untaken, elsewhere = [], ELSEWHERE.get(backend, {})
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
