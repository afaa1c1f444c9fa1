"""Settings that pyproject.toml cannot have: the folders of packages, even without symbolic links; the text for PyPI."""

import re
from pathlib import Path

from setuptools import find_packages, setup


def for_pypi(readme):
    """The README without links to files of the repository, which fail on PyPI: each becomes text and a file name."""

    def words(link):
        text, file = link.groups()
        return text if file in text else f"{text} (`{file}`)"

    named = re.sub(r"!?\[([^]]+)\]\((?!https:)([^)#]*)[^)]*\)", words, readme)
    return f"{named}\nThe source distribution has the files that are named here; the commands run in its folder.\n"


ours = [name for name in find_packages(include=["mha", "mha.*"]) if not name.startswith("mha.backends")]
# Type checkers find no module by a second name, such as mha.plot; `mha/core/lazy.py` has these names.
stubs = ["mha-stubs", "mha-stubs.d2l"]
setup(
    packages=[*ours, *stubs, "mha.backends", *(f"mha.backends.{name}" for name in find_packages("backends"))],
    py_modules=["_mha_pytest_plugin"],
    package_dir={"": ".", "mha.backends": "backends"},
    long_description=for_pypi(Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
