"""Write an assignment to hand out: a skeleton, visible tests, and a readme for students."""

from pathlib import Path

from mha.core import dispatch
from mha.core.options.names import BackendName
from mha.learn.grade import skeleton, visible
from mha.learn.grade.levels import Level

FILES = ("attention.py", "test_attention.py", "README.md")


def texts(backend: BackendName, levels: tuple[Level, ...]) -> dict[str, str]:
    """The texts of the files by name."""
    packages = " ".join(["numpy", *(name for name in dispatch.FRAMEWORKS[backend].needs if name != "numpy")])
    made = (skeleton.text(backend, levels), visible.tests(backend, levels), visible.readme(packages, levels))
    return dict(zip(FILES, made, strict=True))


def write(folder: Path, backend: BackendName, levels: tuple[Level, ...]) -> None:
    """Write the files into a folder, which is made; raises ValueError if one of them exists."""
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise ValueError(f"{folder / there[0]} is there already; choose another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts(backend, levels).items():
        (folder / name).write_text(text, encoding="utf-8")
