"""Layers that are split over ranks of PyTorch or devices of JAX: the checks of modules of tests/programs, as tests."""

import functools

import pytest
import ranks

# By module, the number of ranks; three ranks have rows that do not go round.
COUNTS = {
    "heads_over_ranks": 2, "sequence_over_ranks": 3, "rings_over_ranks": 4, "slots_over_ranks": 4, "failing_ranks": 2,
    "devices_of_jax": 1, "rings_of_jax": 1, "slots_of_jax": 1,
}  # fmt: skip


def parameters():
    """Each module and check; one that takes long runs with --long alone."""
    for module in COUNTS:
        backend = "jax" if module.endswith("of_jax") else "torch"
        for name, is_long in ranks.checks(module).items():
            marks = [pytest.mark.backends(backend), *([pytest.mark.long(backend)] if is_long else [])]
            yield pytest.param(module, name, marks=marks)


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """A function of a module: the results of those of its checks that this run asks for, which run together."""

    @functools.cache
    def of(module):
        asked = [item.callspec.params for item in request.session.items if item.path == request.path]
        names = [params["name"] for params in asked if params["module"] == module]
        return ranks.outcomes(module, COUNTS[module], tmp_path_factory.mktemp(module), 500, names)

    return of


@pytest.mark.parametrize(("module", "name"), [*parameters()])
def test_split(outcomes, module, name):
    problems = "\n".join(outcomes(module)[name])
    assert not problems.strip(), problems
