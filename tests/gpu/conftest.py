"""Tests on a GPU: of PyTorch and JAX, those that are installed and see one."""

import os

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take three quarters of the memory


def pytest_configure(config):
    # What the compilers of frameworks deprecate in their own steps is not ours.
    for category in ("UserWarning", "DeprecationWarning", "FutureWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::{category}")


@pytest.fixture(autouse=True)
def a_gpu(request):
    """The test's framework sees a GPU, or the test fails: it is never skipped."""
    for name in {name for marker in request.node.iter_markers("backends") for name in marker.args}:
        if not sees_one(name):
            pytest.fail(f"{name} sees no GPU; these tests need one", pytrace=False)


def sees_one(name):
    """Whether a framework sees a GPU."""
    if name == "torch":
        import torch

        return torch.cuda.is_available()
    import jax

    return jax.default_backend() == "gpu"
