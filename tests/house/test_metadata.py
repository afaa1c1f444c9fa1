"""The wheel, built in a copy: it has every file, and what a package index shows."""

import email
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata

import pages
import pytest

from mha.core import dispatch

LINK = re.compile(r"\]\(([^)]*)\)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder of its files, built in a copy: setuptools writes beside its sources."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "_mha_pytest_plugin.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(pages.ROOT / name, folder)
    for name in ("mha", "mha-stubs", "backends"):
        shutil.copytree(pages.ROOT / name, folder / name, symlinks=True)
    code = "from setuptools import build_meta; build_meta.build_wheel('built')"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    (packed,) = folder.glob("built/*.whl")
    with zipfile.ZipFile(packed) as read:
        read.extractall(folder / "wheel")
    return folder / "wheel"


@pytest.fixture(scope="module")
def built(wheel):
    """The folder of the metadata."""
    (found,) = wheel.glob("*.dist-info")
    return found


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


def test_the_page_of_versions_has_what_is_accepted_and_what_is_pinned():
    rows = re.findall(r"^\| ([a-z]+) \| (\d\S*) \| (\d\S*) \|", pages.text("docs/versions.md"), re.MULTILINE)
    names = {module.partition(".")[0] for framework in dispatch.FRAMEWORKS.values() for module in framework.needs}
    assert sorted(name for name, *_ in rows) == sorted(names)
    accepted = set(re.findall(r"([a-z]+)(?:\[cpu\])?[>=]=([\d.]+)[\"`]", pages.text("pyproject.toml")))
    pinned = set(re.findall(r"([a-z]+)(?:-cpu|\[cpu\])?==([\d.]+)$", pages.text("tox.ini"), re.MULTILINE))
    assert {(name, oldest) for name, oldest, _ in rows} == {one for one in accepted if one[0] in names}
    assert {(name, version) for name, _, version in rows} == {one for one in pinned if one[0] in names}


def files(folder):
    """The files in a folder, by their names from there, without what Python and setuptools keep."""
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path.as_posix() for path in found if not {"__pycache__", ".mypy_cache"} & {*path.parts}}


def test_the_wheel_has_every_file(wheel, built):
    ours = {f"{name}/{file}" for name in ("mha", "mha-stubs") for file in files(pages.ROOT / name)}
    ours |= {f"mha/backends/{file}" for file in files(pages.ROOT / "backends")} | {"_mha_pytest_plugin.py"}
    assert files(wheel) - {f"{built.name}/{file}" for file in files(built)} == ours


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
