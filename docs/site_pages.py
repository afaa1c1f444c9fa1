"""Pages of `mkdocs build` besides docs/*.md: the course, the comparison page, files that pages link to.

mkdocs calls the functions whose names begin with `on_`. Links work as they do on a code host.
"""

import functools
import posixpath
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
# Pages of the site, by the files outside of docs/ that they show.
MOVED = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCES = re.compile(r"(```.*?```)", re.DOTALL)
LANGUAGES = {".py": "python", ".ini": "ini"}
WIDE = ("differences.md", "semantics.md")  # their tables take the room of the table of contents


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    for path in sorted((ROOT / "docs" / "course").glob("*.ipynb")):
        text, pictures = notebook(path)
        add(files, config, f"course/{path.stem}.md", text)
        for name, content in pictures.items():
            add(files, config, f"course/{name}", content)
    add(files, config, "comparison.html", comparison())
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        add(files, config, MOVED[name], (ROOT / name).read_text(encoding="utf-8"))
    for file in list(files.documentation_pages()):
        for link, _ in LINK.findall(FENCES.sub("", file.content_string)):
            path = in_repository(file.src_uri, link)
            if in_site(path).startswith("source/") and not files.get_file_from_path(in_site(path)):
                add(files, config, in_site(path), source(path))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the links of a page lead to pages of the site; code is not changed."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]

    def led(found: re.Match) -> str:
        here = posixpath.dirname(page.file.src_uri)
        path = in_site(in_repository(page.file.src_uri, found[1]))
        return f"]({posixpath.relpath(path, here)}{found[2] or ''})"

    return "".join(part if part.startswith("```") else LINK.sub(led, part) for part in FENCES.split(markdown))


def add(files: Files, config: MkDocsConfig, name: str, content: str | bytes) -> None:
    """Add a file to the site."""
    files.append(File.generated(config, name, content=content))


def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by their names."""
    read = nbformat.read(path, as_version=4)
    resources = {"output_files_dir": f"{path.stem}_files"}
    text, made = MarkdownExporter().from_notebook_node(read, resources)
    text = text.replace("<details>", '<details markdown="1">').replace("![png]", "![What the code above draws]")
    return text, made["outputs"]


@functools.cache
def comparison() -> bytes:
    """The file that `mha page` writes here: it measures the installed frameworks, and shows the code of all."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        subprocess.run([sys.executable, "-m", "mha", "page", "--output", path], cwd=ROOT, check=True)
        return path.read_bytes()


def in_repository(page: str, link: str) -> str:
    """The path in the repository of a file that a page of the site links to."""
    shown = next((name for name, moved in MOVED.items() if moved == page and name != "README.md"), f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(shown), link))


def in_site(path: str) -> str:
    """The path in the site of a file in the repository."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    return f"source/{path}.md"


def source(path: str) -> str:
    """A page with the code of a file, or of the Python files in a folder."""
    place = ROOT / path
    parts = ["---\nsearch:\n  exclude: true\n---", f"# {path}"]
    for file in sorted(place.glob("*.py")) if place.is_dir() else [place]:
        parts += [f"## {file.name}"] * place.is_dir()
        parts.append(f"````{LANGUAGES[file.suffix]}\n{file.read_text(encoding='utf-8')}````")
    return "\n\n".join(parts) + "\n"
