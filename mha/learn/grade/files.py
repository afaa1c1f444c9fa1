"""The files of a submission: Python, a notebook, or a folder with either; copy them, and find names and frameworks."""

import ast
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

from mha.core import dispatch
from mha.learn.grade.levels import NAMES

FRAMEWORKS = {
    "torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "jax": "jax", "flax": "jax", "mlx": "mlx",
    "mxnet": "mxnet",
}  # fmt: skip
KINDS = (".py", ".ipynb")


def submissions(folder: Path) -> list[Path]:
    """List the submissions in a folder by name: each file of Python, notebook, or folder with one."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            continue
        if path.suffix in KINDS or (path.is_dir() and any(sources(path))):
            found.append(path)
    return found


def sources(path: Path) -> Iterator[Path]:
    """List the files of Python and the notebooks of a submission."""
    if path.is_file():
        yield path
        return
    for one in sorted(path.rglob("*")):
        if one.suffix in KINDS and not any(part.startswith((".", "_")) for part in one.relative_to(path).parts):
            yield one


def copy_submission(path: Path, to: Path) -> Path:
    """Copy a submission into an empty folder; return the file to run, which defines most of the names.

    A notebook becomes a file of its code cells. Raises ValueError if there is none, or a notebook cannot be read.
    """
    if path.is_dir():
        shutil.copytree(path, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    else:
        shutil.copy(path, to / path.name)
    found = list(sources(to))
    if not found:
        raise ValueError(f"{path} holds no .py and no .ipynb")
    for at, one in enumerate(found):
        if one.suffix == ".ipynb":
            found[at] = one.with_suffix(".py" if not one.with_suffix(".py").exists() else ".cells.py")
            found[at].write_text(cells(one), encoding="utf-8")
    return max(found, key=lambda one: len(reachable_names(one)))


def cells(notebook: Path) -> str:
    """Return the code of a notebook, without magics; a cell that cannot be parsed is left out."""
    try:
        import nbformat
    except ImportError:
        to_do = dispatch.pip_for(dispatch.NOTEBOOKS)
        raise ValueError(f"{notebook.name} is a notebook, which nbformat reads: {to_do}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what a notebook lacks beside its code, such as names of its cells
            book = nbformat.read(notebook, as_version=4)
    except Exception as error:
        raise ValueError(f"{notebook.name} is no notebook that can be read: {error}") from None
    code = []
    for cell in book.cells:
        if cell.cell_type != "code" or cell.source.lstrip().startswith("%%"):
            continue
        lines = [line for line in cell.source.splitlines() if not line.lstrip().startswith(("%", "!", "?"))]
        text = "\n".join(line for line in lines if not line.rstrip().endswith("?"))
        if tree(text) is not None:
            code.append(text)
    return "\n\n\n".join(code) + "\n"


def tree(text: str) -> ast.Module | None:
    """Parse code; None if that is impossible."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def parse(path: Path) -> ast.Module:
    """Parse a file; an empty module if that is impossible."""
    return tree(path.read_text(encoding="utf-8", errors="replace")) or ast.Module([], [])


def level_names(path: Path) -> list[str]:
    """List the names of levels that a file defines."""
    found = [getattr(one, "name", "") for one in parse(path).body]
    return [name for name in NAMES if name in found]


def reachable_names(path: Path) -> set[str]:
    """The names of levels that a file defines, or imports from files beside it."""
    found = set(level_names(path))
    for one in parse(path).body:
        if isinstance(one, ast.ImportFrom) and one.module and (beside := path.parent / f"{one.module}.py").exists():
            names = [alias.name for alias in one.names]
            found |= {name for name in level_names(beside) if name in names or "*" in names}
    return found


def frameworks(path: Path) -> list[str]:
    """List the frameworks that a file imports, the first first; [] = none of them."""
    found = []
    for one in ast.walk(parse(path)):
        if isinstance(one, ast.Import):
            names = [alias.name for alias in one.names]
        elif isinstance(one, ast.ImportFrom) and one.module and not one.level:
            names = [f"{one.module}.{alias.name}" for alias in one.names] if one.module == "d2l" else [one.module]
        else:
            continue
        for name in names:
            root, _, rest = name.partition(".")
            found.append(FRAMEWORKS.get(rest.partition(".")[0] if root == "d2l" else root, ""))
    return list(dict.fromkeys(filter(None, found)))
