"""Where the packages are, which pyproject.toml cannot say: backends/ is mha.backends, also where a link is no link."""

from setuptools import find_packages, setup

ours = [name for name in find_packages(include=["mha", "mha.*"]) if not name.startswith("mha.backends")]
setup(
    packages=[*ours, "mha.backends", *(f"mha.backends.{name}" for name in find_packages("backends"))],
    package_dir={"": ".", "mha.backends": "backends"},
)
