"""The folders of `backends/` stay parallel: the same names, order, signatures and docstrings, file by file."""

import ast
import difflib
import inspect
import itertools
import re
from pathlib import Path

import pytest

from mha import backends, dispatch

FOLDER = Path(backends.__path__[0]).resolve()
NAMES = tuple(dispatch.FRAMEWORKS)
REFERENCE = "torch"
FILES = ("layer.py", "heads.py", "fast.py", "arrays.py", "native.py", "book.py", "bench.py", "facts.py")
PAIRS = [(file, name) for file in FILES for name in NAMES if name != REFERENCE and (FOLDER / name / file).exists()]

# How a framework names the methods that every layer has.
SAME_METHOD = {"setup": "__init__", "forward": "__call__", "call": "__call__"}
# What a framework has beyond the others, or has not, and why.
AGAIN = "a block that is computed again has to drop the same weights"
KNOWN = "sizes and lengths are known before a call is cut into pieces"
CUT = ("AttentionPooling.pieces", *(f"MultiHeadAttention.{name}" for name in ("groups", "part", "merged")))
COMPILED = "the framework compiles a call as a whole"
EXTRA = {
    "numpy/layer.py": {"AdditiveAttention.features": "shared by the forward and the backward pass"},
    "numpy/heads.py": {"HeadNorm.normalize": "shared by the forward and the backward pass"},
    "numpy/fast.py": {
        "AttentionPooling.pool_backward": "no automatic differentiation",
        "MultiHeadAttention.vjp": "no automatic differentiation",
        **dict.fromkeys(CUT, KNOWN),
    },
    "torch/fast.py": {
        "DotProductAttention.pool_window": "a kernel of its own that keeps no scores",
        **dict.fromkeys(CUT, KNOWN),
        "DotProductAttention.pool": "a kernel of its own that keeps no scores",
        "DotProductAttention.pool_block": "a kernel of its own that keeps no scores",
        "DotProductAttention.has_kernel": "a kernel of its own that keeps no scores",
        "MultiHeadAttention.split": "a kernel of its own that takes views of the heads",
    },
    "tensorflow/layer.py": {
        "MultiHeadAttention.__call__": "Keras wraps what `call` raises in words of its own",
        "MultiHeadAttention.compute_mask": "Keras passes masks on by itself",
        "MultiHeadAttention.get_config": "Keras' saver makes layers from their options",
    },
    "tensorflow/arrays.py": {
        "refuse_masks": "Keras hangs masks of its own on arrays",
        "shape_of": "a size may be learnt only in a call",
        "must_fit": "a size may be learnt only in a call",
        "row": "Keras' own call takes no more axes of an argument than a user gives",
    },
    "tensorflow/fast.py": {
        "AttentionPooling.drop": AGAIN,
        "MultiHeadAttention.__call__": "a compiled call needs nothing of Keras' own",
        **dict.fromkeys(("vjp", "gradients", "trace"), COMPILED),
    },
    "tensorflow/book.py": {"MultiHeadAttention.pooling": "a file of Keras' saver may tell of another"},
    "jax/fast.py": dict.fromkeys(("attend", "vjp", "gradients", "trace"), COMPILED),
    "jax/book.py": {"get_key": "random numbers take a key", "MultiHeadAttention.__call__": "weights are returned"},
    "mxnet/fast.py": {"AttentionPooling.drop": AGAIN, "AttentionPooling.pieces": KNOWN},
    "mxnet/book.py": {
        "masked_softmax": "`np.array([3, 2])` holds floats",
        "MultiHeadAttention.forward": "`np.array([3, 2])` holds floats",
    },
}
# Files that a folder need not have: the book has no section for NumPy.
WITHOUT = {"numpy": {"book.py"}}
# By how many lines two lessons differ, as `diff` counts them. A smaller number is welcome: write it here.
DIFFERENCES = {
    ("numpy", "torch"): 162,
    ("numpy", "tensorflow"): 230,
    ("numpy", "jax"): 216,
    ("numpy", "mxnet"): 168,
    ("torch", "tensorflow"): 226,
    ("torch", "jax"): 214,
    ("torch", "mxnet"): 144,
    ("tensorflow", "jax"): 278,
    ("tensorflow", "mxnet"): 248,
    ("jax", "mxnet"): 224,
}


def text(name, file):
    return (FOLDER / name / file).read_text(encoding="utf-8")


def tree(name, file):
    return ast.parse(text(name, file))


def arguments(function, owner, fields):
    """Argument names with their defaults; those of a Flax module are its fields, inherited ones first."""
    if function.name == "setup":
        inherited = [base.id for base in owner.bases if isinstance(base, ast.Name)]
        own = [node for base in inherited for node in fields.get(base, [])]
        own += [node for node in owner.body if isinstance(node, ast.AnnAssign)]
        fields[owner.name] = own
        shown = [(field.target.id, field.value and ast.unparse(field.value)) for field in own]
        plain = [node for node in owner.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
        return shown + [(node.targets[0].id, ast.unparse(node.value)) for node in plain]  # fields of subclasses
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args) if argument.arg != "self"]
    defaults = [None] * (len(names) - len(given.defaults)) + [ast.unparse(default) for default in given.defaults]
    return list(zip(names, defaults, strict=True))


def outline(name, file):
    """Every public name of a file in order: (name, arguments, docstring), methods as Class.method."""
    found, fields, extra = [], {}, EXTRA.get(f"{name}/{file}", {})
    for node in tree(name, file).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_") or node.name in extra:
            continue
        if isinstance(node, ast.FunctionDef):
            found.append((node.name, arguments(node, None, fields), ast.get_docstring(node)))
            continue
        found.append((node.name, None, ast.get_docstring(node)))
        named = {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
        if any(isinstance(field, ast.AnnAssign) for field in node.body) and "setup" not in named:
            found.append(
                (f"{node.name}.__init__", arguments(ast.parse("def setup(): ...").body[0], node, fields), None)
            )
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and f"{node.name}.{method.name}" not in extra:
                shown = f"{node.name}.{SAME_METHOD.get(method.name, method.name)}"
                found.append((shown, arguments(method, node, fields), ast.get_docstring(method)))
    return found


def sections(name, file):
    return re.findall(r"^# (\d\. .+)$", text(name, file), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_folder_has_the_same_files(name):
    assert {file for file in FILES if not (FOLDER / name / file).exists()} == WITHOUT.get(name, set())


@pytest.mark.parametrize(("file", "name"), PAIRS)
def test_sections_are_the_same(file, name):
    assert sections(name, file) == sections(REFERENCE, file)


def pairs(*files):
    return [pair for pair in PAIRS if pair[0] in files]


@pytest.mark.parametrize(("file", "name"), pairs("layer.py", "heads.py", "arrays.py", "facts.py"))
def test_names_order_signatures_and_docstrings_are_the_same(file, name):
    assert outline(name, file) == outline(REFERENCE, file)
    assert all(docstring for known, _, docstring in outline(name, file) if not known.endswith(".__init__"))


@pytest.mark.parametrize(("file", "name"), pairs("fast.py"))
def test_names_order_and_signatures_are_the_same(file, name):
    found, reference = (outline(each, file) for each in (name, REFERENCE))
    assert [(known, given) for known, given, _ in found] == [(known, given) for known, given, _ in reference]
    assert all(docstring for _, _, docstring in (*found, *reference))


@pytest.mark.parametrize(("file", "name"), pairs("native.py", "book.py", "bench.py"))
def test_names_and_signatures_are_known_to_the_reference(file, name):
    """A framework may lack what PyTorch has here, such as a layer of its own, but calls nothing by another name."""
    reference = [(known, given) for known, given, _ in outline(REFERENCE, file)]
    shown = [(known, given) for known, given, _ in outline(name, file)]
    assert shown == [pair for pair in reference if pair[0] in dict(shown)]


@pytest.mark.parametrize("place", EXTRA)
def test_extras_exist_and_are_documented(place):
    name, file = place.split("/")
    body = tree(name, file).body
    for extra in EXTRA[place]:
        *owner, known = extra.split(".")
        nodes = next(node.body for node in body if getattr(node, "name", "") == owner[0]) if owner else body
        (found,) = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == known]
        assert ast.get_docstring(found), extra


@pytest.mark.parametrize(("one", "other"), DIFFERENCES)
def test_two_lessons_differ_in_no_more_lines_than_they_did(one, other):
    lines = [text(name, "layer.py").splitlines() for name in (one, other)]
    diff = difflib.unified_diff(*lines, n=0, lineterm="")
    changed = sum(line[0] in "+-" and not line.startswith(("+++", "---")) for line in diff)
    assert changed <= DIFFERENCES[one, other], f"{one} and {other} have drifted apart"
    assert changed >= DIFFERENCES[one, other], f"{one} and {other} came nearer: write {changed} here"


def test_every_pair_of_lessons_is_counted():
    assert list(DIFFERENCES) == list(itertools.combinations(NAMES, 2))


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_can_be_read_in_one_sitting(name):
    assert len(text(name, "layer.py").splitlines()) <= 430


def imported(path):
    """The modules that a file imports, those beside it with a dot in front."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            yield from (f"{name}{alias.name}" for alias in node.names) if name == "." else (name,)


PACKAGES = {
    name: {*framework.needs, *framework.arrays} - {"numpy", "jaxlib"} for name, framework in dispatch.FRAMEWORKS.items()
}
FRAMEWORKS = set().union(*PACKAGES.values())


@pytest.mark.parametrize("name", NAMES)
def test_no_folder_imports_another_framework(name):
    for path in (FOLDER / name).glob("*.py"):
        roots = {module.partition(".")[0] for module in imported(path)}
        assert roots & FRAMEWORKS <= PACKAGES[name], path


@pytest.mark.parametrize("name", NAMES)
def test_imports_run_one_way(name):
    """fast -> layer -> heads -> arrays; what else is in a folder may use these, and they do not know it."""
    may = {"arrays.py": set(), "heads.py": {".arrays"}, "layer.py": {".heads", ".arrays"}}
    may["backward.py"] = {".layer", ".heads", ".arrays"}
    for file, allowed in may.items():
        path = FOLDER / name / file
        if path.exists():
            assert {module for module in imported(path) if module.startswith(".")} <= allowed, path
            assert not [module for module in imported(path) if module.startswith("mha.backends")], path
    known = {module for module in imported(FOLDER / name / "fast.py") if module.startswith(".")}
    assert known.isdisjoint({".native", ".book", ".bench"})


@pytest.mark.parametrize("path", sorted(Path(dispatch.__file__).parent.glob("**/*.py")), ids=lambda path: path.name)
def test_mha_itself_imports_no_framework(path):
    if FOLDER not in path.resolve().parents:
        assert {module.partition(".")[0] for module in imported(path)}.isdisjoint(FRAMEWORKS)


@pytest.mark.parametrize("name", NAMES)
def test_lines_that_reshape_say_the_shape(name):
    for path in (FOLDER / name).glob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.search(r"\breshape\(|\.transpose\(0|permute\(|tf\.transpose\(X, \(0, 2", line):
                assert re.search(r"#.*\(.*\)", line), f"{path}: {line}"


def test_the_link_and_the_folder_are_the_same_code():
    assert inspect.getsource(dispatch.load("numpy").fast) == text("numpy", "fast.py")
