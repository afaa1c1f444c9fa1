"""The five backend modules stay parallel: the same sections, names, order, signatures and docstrings."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from mha import backends, dispatch

FOLDER = Path(backends.__path__[0])
REFERENCE = "torch"

# How a framework names the methods that every layer has.
SAME_METHOD = {"setup": "__init__", "forward": "__call__", "call": "__call__"}
# What a framework needs beyond the others, and why.
EXTRA = {
    "numpy": {
        "AttentionPooling.backward": "no automatic differentiation",
        "AttentionPooling.pool_backward": "no automatic differentiation",
        "DotProductAttention.scores_backward": "no automatic differentiation",
        "AdditiveAttention.features": "shared by forward and backward pass",
        "AdditiveAttention.scores_backward": "no automatic differentiation",
        "MultiHeadAttention.backward": "no automatic differentiation",
    },
    "torch": {
        "DotProductAttention.pool": "a kernel of its own that keeps no scores",
        "DotProductAttention.pool_block": "a kernel of its own that keeps no scores",
        "MultiHeadAttention.split": "a kernel of its own that takes views of the heads",
    },
    "tensorflow": {
        "MultiHeadAttention.__call__": "Keras wraps what `call` raises in words of its own",
        "MultiHeadAttention.compute_mask": "Keras passes masks on by itself",
        "MultiHeadAttention.get_config": "Keras' saver makes layers from their options",
    },
}


def tree(backend):
    return ast.parse((FOLDER / f"{backend}.py").read_text(encoding="utf-8"))


def arguments(function, owner):
    """Argument names with their defaults; those of a Flax module are its fields, inherited ones first."""
    if function.name == "setup":
        inherited = [base.id for base in owner.bases if isinstance(base, ast.Name)]
        fields = [node for name in inherited for node in FIELDS.get(name, [])]
        fields += [node for node in owner.body if isinstance(node, ast.AnnAssign)]
        FIELDS[owner.name] = fields
        return [(field.target.id, field.value and ast.unparse(field.value)) for field in fields]
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args) if argument.arg != "self"]
    defaults = [None] * (len(names) - len(given.defaults)) + [ast.unparse(default) for default in given.defaults]
    return list(zip(names, defaults, strict=True))


FIELDS = {}


def outline(backend):
    """Every public name of a module in order: (name, arguments, docstring), methods as Class.method."""
    FIELDS.clear()
    found = []
    for node in tree(backend).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            if isinstance(node, ast.FunctionDef):
                found.append((node.name, arguments(node, None), ast.get_docstring(node)))
                continue
            found.append((node.name, None, ast.get_docstring(node)))
            methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
            for method in methods:
                if f"{node.name}.{method.name}" not in EXTRA.get(backend, {}):
                    name = f"{node.name}.{SAME_METHOD.get(method.name, method.name)}"
                    found.append((name, arguments(method, node), ast.get_docstring(method)))
    return found


def sections(backend):
    return re.findall(r"^# (\d\. .+)$", (FOLDER / f"{backend}.py").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", dispatch.FRAMEWORKS)
def test_sections_are_the_same(name):
    assert sections(name) == sections(REFERENCE)
    assert len(sections(name)) == 5


@pytest.mark.parametrize("name", dispatch.FRAMEWORKS)
def test_names_order_signatures_and_docstrings_are_the_same(name):
    assert outline(name) == outline(REFERENCE)
    assert all(docstring for name, _, docstring in outline(name) if not name.endswith(".__init__"))


@pytest.mark.parametrize("name", dispatch.FRAMEWORKS)
def test_extras_exist_and_are_documented(name):
    classes = {node.name: node for node in tree(name).body if isinstance(node, ast.ClassDef)}
    for extra in EXTRA.get(name, {}):
        owner, method = extra.split(".")
        found = [node for node in classes[owner].body if isinstance(node, ast.FunctionDef) and node.name == method]
        assert found, extra
        assert ast.get_docstring(found[0]), extra


@pytest.mark.parametrize("name", dispatch.FRAMEWORKS)
def test_no_module_imports_another_framework(name):
    roots = {"numpy": set(), "torch": {"torch"}, "tensorflow": {"tensorflow", "keras"}, "jax": {"jax", "flax"}}
    roots["mxnet"] = {"mxnet"}
    imported = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    frameworks = set().union(*roots.values())
    assert imported & frameworks <= roots[name]


@pytest.mark.parametrize("name", dispatch.FRAMEWORKS)
def test_lines_that_reshape_say_the_shape(name):
    for line in (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines():
        if re.search(r"\breshape\(|\.transpose\(0|permute\(|tf\.transpose\(X, \(0, 2", line):
            assert re.search(r"#.*\(.*\)", line), line


def test_the_link_and_the_folder_are_the_same_code():
    assert inspect.getsource(dispatch.load("numpy")) == (FOLDER / "numpy.py").read_text(encoding="utf-8")
