"""Ten written files of each framework, in which each option occurs: proven compiled."""

import pytest
import writing


@pytest.fixture(scope="module")
def folder(backend, tmp_path_factory):
    """A folder with ten files of a framework, and their proofs."""
    made = tmp_path_factory.mktemp(backend)
    writing.ten(backend, made)
    return made


@pytest.mark.backends("numpy")
def test_each_option_is_in_one_of_the_ten():
    assert {name for options, _ in writing.TEN.values() for name in options} == {*writing.OPTIONS} - {"nothing more"}


@pytest.mark.backends("numpy")
@pytest.mark.long("numpy")
def test_files_are_proven_where_nothing_compiles(backend, folder):
    code, output = writing.proof(folder, backend)
    assert code == 0, output


@pytest.mark.needs("a compiler")
@pytest.mark.long("torch", "tensorflow", "jax", "mxnet", "mlx")  # `tox -e written` proves more
def test_files_are_proven_compiled(backend, folder):
    code, output = writing.proof(folder, backend, compiled="quick")
    assert code == 0, output
    assert "10 passed" in output
