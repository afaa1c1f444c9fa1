"""`mha backends`: what is installed, what is missing and what is broken."""

import contextvars
from types import SimpleNamespace

import pytest
from commands import run

from mha.core import dispatch


def test_backends_shows_version_and_device(monkeypatch, backend):
    monkeypatch.setenv("MHA_BACKEND", backend)
    result = run("backends")
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith(backend))
    assert row.split()[:2] == [backend, dispatch.backends()[backend].version]
    assert dispatch.load(backend).device() in row
    assert row.rstrip().endswith("selected")
    assert [line.split()[0] for line in result.stdout.splitlines()[2:]] == list(dispatch.FRAMEWORKS)


@pytest.fixture
def torch():
    """PyTorch, whose precision of float32 products is set back."""
    found = dispatch.load("torch").arrays.torch
    yield found
    found.set_float32_matmul_precision("highest")


@pytest.mark.backends("torch")
def test_pytorch_computes_on_the_processor_unless_told_otherwise(monkeypatch, torch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert dispatch.load("torch").device() == "cpu"


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("precision", "words"),
    [("highest", "in float32"), ("high", "may be in TF32"), ("medium", "may be in TF32")],
)
def test_a_gpu_of_pytorch_has_its_model_and_the_precision_of_products(monkeypatch, torch, precision, words):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: f"NVIDIA {place.index}")
    torch.set_float32_matmul_precision(precision)
    device = dispatch.load("torch").device
    assert device("cuda:1") == device(torch.device("cuda:1")) == f"cuda:1 (NVIDIA 1), float32 products {words}"
    products = SimpleNamespace(allow_tf32=precision != "highest")  # as before PyTorch 2.9
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(matmul=products))
    assert device("cuda:1").endswith(f"float32 products {words}")


@pytest.mark.backends("torch")
def test_a_newer_switch_of_pytorch_is_read(monkeypatch, torch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "NVIDIA")
    for precision, words in (("tf32", "may be in TF32"), ("ieee", "in float32")):
        torch.backends.cuda.matmul.fp32_precision = precision
        assert dispatch.load("torch").device("cuda") == f"cuda (NVIDIA), float32 products {words}"


@pytest.mark.backends("jax")
@pytest.mark.parametrize(
    ("platform", "precision", "words"),
    [
        ("gpu", None, "gpu (X1), float32 products may be in TF32"),
        ("gpu", "high", "gpu (X1), float32 products may be in TF32"),
        ("gpu", "highest", "gpu (X1), float32 products in float32"),
        ("tpu", None, "tpu (X1)"),
        ("cpu", None, "cpu"),
    ],
)
def test_a_device_of_jax_has_its_kind_and_the_precision_of_products(monkeypatch, platform, precision, words):
    module = dispatch.load("jax")
    found = SimpleNamespace(devices=lambda: [SimpleNamespace(platform=platform, device_kind="X1")])
    with module.arrays.jax.default_matmul_precision(precision):
        monkeypatch.setattr(module.arrays.jnp, "zeros", lambda shape: found)
        assert module.device() == words


@pytest.mark.backends("torch", "jax")
def test_a_device_is_used_from_then_on(backend):
    arrays = dispatch.load(backend).arrays

    def used():
        arrays.use_device("cpu")
        return arrays.USUAL.get() if backend == "torch" else arrays.jax.config.jax_default_device

    try:
        found = contextvars.copy_context().run(used)
    finally:
        if backend == "jax":
            arrays.jax.config.update("jax_default_device", None)
    assert found == (arrays.torch.device("cpu") if backend == "torch" else arrays.jax.devices("cpu")[0])


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(("enabled", "words"), [(True, "may be in TF32"), (False, "in float32")])
def test_a_gpu_of_tensorflow_has_its_model_and_the_precision_of_products(monkeypatch, enabled, words):
    module = dispatch.load("tensorflow")
    config = module.arrays.tf.config
    assert module.device() == "cpu"
    monkeypatch.setattr(config, "list_logical_devices", lambda kind: [kind])
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(config.experimental, "get_device_details", lambda device: {"device_name": f"{device} 1"})
    monkeypatch.setattr(config.experimental, "tensor_float_32_execution_enabled", lambda: enabled)
    assert module.device() == f"gpu (GPU 1), float32 products {words}"


@pytest.mark.backends("mlx")
def test_a_gpu_of_mlx_has_the_precision_of_products(monkeypatch):
    module = dispatch.load("mlx")
    monkeypatch.setattr(module.arrays.mx, "default_device", lambda: module.arrays.mx.gpu)
    for value, words in (("1", "may be in TF32"), ("0", "in float32")):
        monkeypatch.setenv("MLX_ENABLE_TF32", value)
        assert module.device() == f"gpu, float32 products {words}"


def test_backends_shows_whether_the_lesson_runs(monkeypatch):
    monkeypatch.setenv("MHA_BACKEND", "numpy")
    monkeypatch.setenv("MHA_READABLE", "1")
    noted = [line for line in run("backends").stdout.splitlines() if "readable" in line]
    assert [line.split()[0] for line in noted] == ["numpy"]


@pytest.mark.parametrize(("selected", "code"), [("numpy", 0), ("jax", 1)])
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("absent", 'no_such_framework not installed: pip install "no-such-framework>=3"'),
        ("broken", "broken: OSError: libbroken.so: undefined symbol"),
    ],
)
def test_backends_goes_on_where_one_does_not_work(monkeypatch, request, kind, why, selected, code):
    name = request.getfixturevalue(kind)
    monkeypatch.setenv("MHA_BACKEND", selected)
    result = run("backends")
    assert result.exit_code == code
    assert why in next(line for line in result.stdout.splitlines() if line.startswith(name))
    assert result.stdout.splitlines()[-1].startswith(list(dispatch.FRAMEWORKS)[-1])
