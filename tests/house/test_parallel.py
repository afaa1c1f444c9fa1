"""The folders of `backends/` stay parallel, as do the files of each framework in other rooms; imports run one way."""

import ast
import difflib
import graphlib
import importlib
import inspect
import itertools
import re
from pathlib import Path

import pytest

from mha import backends
from mha.core import dispatch
from mha.learn.page import measures

FOLDER = Path(backends.__path__[0]).resolve()
NAMES = tuple(dispatch.FRAMEWORKS)
REFERENCE = "torch"
OTHERS = [name for name in NAMES if name != REFERENCE]
CHAPTERS = tuple(f"{chapter}.py" for chapter in dispatch.CHAPTERS)
ENGINE = ("engine/layer.py", "engine/pooling.py", "engine/operations.py")
# Rooms of `mha` with a file for each framework.
MHA = Path(dispatch.__file__).parents[1]
MEASURES = "learn/page/frameworks"
USES = (
    "weights/frameworks", "models/frameworks", "learn/d2l", MEASURES,
    "bench/frameworks", "bench/frameworks/ranks", "learn/d2l/next",
)  # fmt: skip
SHARED = {"learn/d2l": {"common"}, "learn/d2l/next": {"model", "names", "text"}}  # what the files of such a room share

# How a framework names the methods that every layer has.
SAME_METHOD = {"setup": "__init__"} | dict.fromkeys(dispatch.facts("METHOD").values(), "__call__")
# What a folder has alone, as its facts say: whole files, and names of those that others have, such as "Layer.method".
ALONE = {
    name: [f"{file}{of}{one}" for file, of, own in (each.partition(": ") for each in alone) for one in own.split(", ")]
    for name, alone in dispatch.facts("ALONE").items()
}
# In how many lines the chapters of two folders differ, as `diff` counts them, at most.
DIFFERENCES = {
    ("numpy", "torch"): 510,
    ("numpy", "tensorflow"): 593,
    ("numpy", "jax"): 554,
    ("numpy", "mxnet"): 562,
    ("torch", "tensorflow"): 370,
    ("torch", "jax"): 345,
    ("torch", "mxnet"): 378,
    ("tensorflow", "jax"): 427,
    ("tensorflow", "mxnet"): 486,
    ("jax", "mxnet"): 463,
}
MOST = 650  # of others
LONGEST = {"tensorflow": 185}  # lines of layer.py, where it is not 160: Keras's class is longer by itself


def path_of(name, file):
    """The path of a file in a backend's folder, or of the backend's file in another room."""
    return MHA / file / f"{name}.py" if file in USES else FOLDER / name / file


def sources_of(name):
    """All files of a framework, in its folder and in other rooms."""
    own = [path for room in USES if (path := path_of(name, room)).exists()]
    alone = [MHA / file for file in ALONE[name] if (MHA / file).is_file()]
    return [*(FOLDER / name).rglob("*.py"), *(MHA / "parallel" / name).rglob("*.py"), *own, *alone]


def text(name, file):
    return path_of(name, file).read_text(encoding="utf-8")


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


def extras(name, file):
    """The names that a file has alone."""
    return {one.partition(": ")[2] for one in ALONE[name] if one.startswith(f"{file}: ")}


def outline(name, file):
    """Every public name of a file in order: (name, arguments, docstring), methods as Class.method."""
    found, fields, extra = [], {}, extras(name, file)
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


def files(name):
    """The files of a folder that are compared, by their paths in it."""
    return {path.relative_to(FOLDER / name).as_posix() for path in (FOLDER / name).rglob("*.py")}


def pairs(*files):
    """The files with the folders other than the reference that have them."""
    return [(file, name) for file in files for name in OTHERS if path_of(name, file).exists()]


@pytest.mark.parametrize("name", OTHERS)
def test_every_folder_has_the_same_files(name):
    own, others = (
        {one for one in ALONE[each] if ": " not in one and not (MHA / one).exists()} for each in (name, REFERENCE)
    )
    assert own <= files(name)
    assert files(name) - own == files(REFERENCE) - others
    assert {*CHAPTERS, *ENGINE, "arrays.py"} <= files(REFERENCE)


@pytest.mark.parametrize("room", USES)
def test_a_room_for_frameworks_has_a_file_for_each(room):
    """Another file there is what a framework has alone, or says why by its name in `LACKING` that there is none."""
    alone = {Path(one).stem for name in NAMES for one in ALONE[name] if Path(one).parent == Path(room)}
    assert {path.stem for path in (MHA / room).glob("*.py")} - alone - {"__init__"} - SHARED.get(room, set()) <= {
        *NAMES
    }
    assert (MHA / room / f"{REFERENCE}.py").exists()


@pytest.mark.parametrize(("file", "name"), pairs(*CHAPTERS, "arrays.py"))
def test_names_order_signatures_and_docstrings_are_the_same(file, name):
    assert outline(name, file) == outline(REFERENCE, file)
    assert all(docstring for known, _, docstring in outline(name, file) if not known.endswith(".__init__"))


@pytest.mark.parametrize(("file", "name"), pairs(*CHAPTERS))
def test_chapters_begin_alike(file, name):
    """The same number and title, letters and sources; between them is what a framework does its own way."""
    found, reference = (ast.get_docstring(tree(one, file)).split("\n\n") for one in (name, REFERENCE))
    title, same = (
        re.match(r"Chapter \d: .*?(?=, in |[A-Z]\w+ differentiates)", one[0])[0] for one in (found, reference)
    )
    assert title == same
    assert title.startswith(f"Chapter {CHAPTERS.index(file) + 1}: ")
    fixed = "Letters: ", "Source: ", "Sources: "
    assert [part for part in found if part.startswith(fixed)] == [part for part in reference if part.startswith(fixed)]


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_chapters_is_in_the_first_lines(name):
    assert tuple(re.findall(r"\w+\.py", ast.get_docstring(tree(name, "__init__.py")))) == CHAPTERS


@pytest.mark.parametrize("name", OTHERS)
def test_every_folder_hands_on_the_same_names(name):
    def handed(name):
        nodes = [node for node in tree(name, "__init__.py").body if isinstance(node, ast.ImportFrom)]
        return sorted(alias.asname or alias.name for node in nodes for alias in node.names)

    assert handed(name) == handed(REFERENCE)


@pytest.mark.parametrize("file", ENGINE)
def test_engines_take_the_same_arguments_and_are_documented(file):
    """An engine has functions of its framework alone; methods of the same name take the same, as the lesson's do."""
    known = {}
    for name in NAMES:
        chapter = outline(REFERENCE, Path(file).name) if Path(file).name in CHAPTERS else []
        for function, given, docstring in (*chapter, *outline(name, file)):
            if function.endswith(".__init__"):
                continue
            assert docstring, f"{name}/{file}: {function}"
            if "." in function:
                assert known.setdefault(function, given) == given, f"{name}/{file}: {function}"
    assert file == "engine/operations.py" or len(known) > 5


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_overrides_the_seams_of_the_layer(name):
    """Whoever reads the lesson knows the order of the steps: no engine says it again."""
    (layer,) = (
        node for node in tree(name, "engine/layer.py").body if getattr(node, "name", "") == "MultiHeadAttention"
    )
    own = {SAME_METHOD.get(node.name, node.name) for node in layer.body if isinstance(node, ast.FunctionDef)}
    of_lesson = {known.partition(".")[2] for known, _, _ in outline(name, "layer.py") if known.startswith(layer.name)}
    assert own & of_lesson <= {"__init__", "__call__", "attend", "project", "zero_unused", "pool", "merge"}
    for file in (FOLDER / name / "engine").glob("*.py"):
        assert not re.search(r"\.transform_heads\(|\bW_o\(", file.read_text(encoding="utf-8")), file


@pytest.mark.parametrize(("file", "name"), pairs(*USES[:-1]))
def test_names_and_signatures_are_known_to_the_reference(file, name):
    """A framework may lack what PyTorch has here, such as a layer of its own, but calls nothing by another name."""
    reference = [(known, given) for known, given, _ in outline(REFERENCE, file)]
    shown = [(known, given) for known, given, _ in outline(name, file)]
    assert shown == [pair for pair in reference if pair[0] in dict(shown)]


def test_what_is_measured_is_described():
    assert [known for known, _, _ in outline(REFERENCE, MEASURES)] == list(measures.NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_folder_has_alone_exists_and_is_documented(name):
    for file, _, extra in (one.partition(": ") for one in ALONE[name]):
        if not extra:
            assert (FOLDER / name / file).is_file() or (MHA / file).is_file(), file
            continue
        *owner, known = extra.split(".")
        body = tree(name, file).body
        nodes = next(node.body for node in body if getattr(node, "name", "") == owner[0]) if owner else body
        (found,) = [node for node in nodes if getattr(node, "name", "") == known]
        assert known == "__init__" or ast.get_docstring(found), extra


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(NAMES, 2)))
def test_the_chapters_of_two_folders_differ_in_few_lines(one, other):
    changed = 0
    for chapter in CHAPTERS:
        diff = difflib.unified_diff(*(text(name, chapter).splitlines() for name in (one, other)), n=0, lineterm="")
        changed += sum(line[0] in "+-" and not line.startswith(("+++", "---")) for line in diff)
    most = DIFFERENCES.get((one, other), MOST)
    assert changed <= most, f"{one} and {other} have drifted apart: {changed} lines differ"


@pytest.mark.parametrize("name", NAMES)
def test_the_layer_fits_on_a_slide_and_every_file_on_a_few_pages(name):
    assert len(text(name, "layer.py").splitlines()) <= LONGEST.get(name, 160)
    for path in sources_of(name):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path


def imported(path):
    """The modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


PACKAGES = {
    name: {*framework.needs, *framework.arrays} - {"numpy", "jaxlib"} for name, framework in dispatch.FRAMEWORKS.items()
}
FRAMEWORKS = set().union(*PACKAGES.values())


@pytest.mark.parametrize("name", NAMES)
def test_no_folder_imports_another_framework(name):
    for path in sources_of(name):
        roots = {module.partition(".")[0] for module in imported(path)}
        assert roots & FRAMEWORKS <= PACKAGES[name], path
        backends = {module.split(".")[2] for module in imported(path) if module.startswith("mha.backends.")}
        assert backends <= (set() if FOLDER in path.parents else {name}), path


def imported_beside(name, path):
    """The files of a folder that one of them imports from; of a name that is taken from a file, (file, name)."""
    for node in ast.walk(tree(name, path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            place = Path(path).parents[node.level - 1] / (node.module or "").replace(".", "/")
            for alias in node.names:
                file = f"{place / alias.name}.py"
                inside = file if (FOLDER / name / file).exists() else f"{place}.py"
                package = f"{place}/__init__.py".removeprefix("./")
                yield (inside if (FOLDER / name / inside).exists() else package), alias.name


FLOORS = {"facts.py": 0, "arrays.py": 0, **dict.fromkeys(CHAPTERS, 1), "engine": 2, "__init__.py": 3}


@pytest.mark.parametrize("name", NAMES)
def test_imports_run_one_way(name):
    """engine -> chapters -> arrays -> mha, without a circle; chapters know no engine."""
    graph = {}
    for path in (FOLDER / name).rglob("*.py"):
        file = path.relative_to(FOLDER / name).as_posix()
        graph[file] = {found for found, _ in imported_beside(name, file)}
        assert not [known for _, known in imported_beside(name, file) if known.startswith("_")], path
        floor = FLOORS[file.partition("/")[0]]
        assert {found for found in graph[file] if FLOORS[found.partition("/")[0]] > floor} == set(), path
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_mha_itself_imports_no_framework():
    """But for what runs submissions in a process of its own, which imports nothing of `mha` in turn."""
    of_frameworks = {path for name in NAMES for path in sources_of(name)}
    for path in MHA.glob("**/*.py"):
        if path.parent.name == "child":
            assert "mha" not in {module.partition(".")[0] for module in imported(path)}, path
        elif path.resolve() not in of_frameworks:
            assert {module.partition(".")[0] for module in imported(path)}.isdisjoint(FRAMEWORKS), path


@pytest.mark.parametrize("name", NAMES)
def test_lines_that_reshape_say_the_shape(name):
    for path in sources_of(name):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.stmt):
                last = node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno  # of a loop: its head
                lines = "\n".join(source.splitlines()[node.lineno - 1 : last])
                if re.search(r"\breshape\(|\.transpose\(0|\bpermute\(|tf\.transpose\(X, \(0, 2", lines):
                    assert re.search(r"#.*\(.*\)", lines), f"{path}: {lines}"


def test_the_link_and_the_folder_are_the_same_code():
    assert inspect.getsource(importlib.import_module("mha.backends.numpy.layer")) == text("numpy", "layer.py")
