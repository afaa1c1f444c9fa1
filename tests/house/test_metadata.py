"""The metadata of the package, built as for a wheel: what a package index shows."""

import email
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata

import pages
import pytest

LINK = re.compile(r"\]\(([^)]*)\)")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the metadata, built in a copy: setuptools writes beside its sources."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "_mha_pytest_plugin.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(pages.ROOT / name, folder)
    for name in ("mha", "mha-stubs", "backends"):
        shutil.copytree(pages.ROOT / name, folder / name, symlinks=True)
    (folder / "built").mkdir()
    code = "from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel('built')"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    (built,) = folder.glob("built/*.dist-info")
    return built


@pytest.fixture(scope="module")
def description(built):
    """The long description."""
    message = email.message_from_bytes((built / "METADATA").read_bytes())
    assert message["Description-Content-Type"] == "text/markdown"
    return message.get_payload(decode=True).decode()


def test_pytest_finds_its_plugin(built):
    (plugin,) = metadata.PathDistribution(built).entry_points.select(group="pytest11")
    assert plugin.module == "_mha_pytest_plugin"
    assert "_mha_pytest_plugin" in (built / "top_level.txt").read_text().split()


def test_who_cites_it_names_its_version_and_license(built):
    """The version stands in `mha.__version__`; a citation has it again, since nothing runs there."""
    said = dict(re.findall(r"^(version|license|title): (.*)$", pages.text("CITATION.cff"), re.MULTILINE))
    message = email.message_from_bytes((built / "METADATA").read_bytes())
    assert said["version"] == message["Version"]
    assert said["license"] == message["License-Expression"]
    assert said["title"].startswith('"mha: one multi-head attention')


def test_every_file_that_is_no_module_is_packaged():
    patterns = tomllib.loads(pages.text("pyproject.toml"))["tool"]["setuptools"]["package-data"]["mha"]
    packaged = {path for pattern in patterns for path in (pages.ROOT / "mha").glob(pattern)}
    kept = {path for path in (pages.ROOT / "mha").rglob("*.*") if path.suffix not in (".py", ".pyc") and path.is_file()}
    assert {path for path in kept if "__pycache__" not in path.parts} == packaged
    assert all((path.parent / "__init__.py").exists() for path in packaged)


def test_no_link_leads_nowhere(description):
    assert [link for link in LINK.findall(description) if not link.startswith("https://")] == []


def test_every_file_that_the_readme_links_is_named(description):
    links = [link for link in LINK.findall(pages.text("README.md")) if not link.startswith(("https:", "#"))]
    files = {link.partition("#")[0] for link in links}
    assert len(files) > 10
    assert [file for file in files if f"`{file}" not in description] == []


def test_the_rest_is_the_readme(description):
    readme = pages.text("README.md")
    blocks = re.findall(r"```.*?```", readme, re.DOTALL)
    assert re.findall(r"```.*?```", description, re.DOTALL) == blocks
    plain = [line for line in readme.splitlines() if not re.search(r"[\[\]]", line)]
    assert [line for line in plain if line not in description.splitlines()] == []
