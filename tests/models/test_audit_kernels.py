"""The calls of kernels in modules that no table knows, as audits read and judge them.

Letters: B samples, T tokens (Q queries, K keys), H heads of queries, G of keys and values, d the width of a head.
"""

import functools
import importlib
import types
from typing import ClassVar

import numpy as np
import pytest

from mha import parity
from mha.models.audit.calls.kernel_call import hide_or_add

from .verdicts import verdicts

B, H, G, Q, K, d = 2, 6, 3, 5, 7, 4
RNG = np.random.default_rng(3)
PAIRS, ADDED = RNG.random((B, 1, Q, K)) < 0.6, RNG.normal(size=(1, H, Q, K)).astype("float32")
PAIRS[..., 0] = True
FULL = "neither projections, norms, rotation"


def heads(layout="BHTD", heads_of_keys=H):
    """Heads of queries, keys and values in NumPy's float32."""
    shapes = (B, H, Q, d), *[(B, heads_of_keys, K, d)] * 2
    found = [np.random.default_rng(at).normal(size=shape).astype("float32") for at, shape in enumerate(shapes)]
    return [X.swapaxes(1, 2) if layout == "BTHD" else X for X in found]


def test_masks_hide_or_are_added():
    assert hide_or_add(None, None) == {}
    assert hide_or_add(np.ones(3, bool), np.zeros(3)) == {}
    found = hide_or_add(np.array([True, True, False]), np.array([-3e38, 0.5, 1.0]), np.array([0.0, 0.5, -100.0]))
    np.testing.assert_array_equal(found["mask"], [False, True, False])
    np.testing.assert_array_equal(found["bias"], [0.0, 1.0, -99.0])


class OfTorch:
    """PyTorch's kernel: its forms, with arguments by name."""

    backend, place, name = "torch", "torch.nn.functional", "scaled_dot_product_attention"
    forms: ClassVar = {
        "plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.7}, "mask": {"attn_mask": PAIRS},
        "bias": {"attn_mask": ADDED}, "dropout": {"dropout_p": 0.5}, "one head": {"heads": 1},
        "shared heads": {"heads": G, "enable_gqa": True},
        "bias that hides": {"attn_mask": np.where(PAIRS, ADDED, -np.inf).astype("float32")},
    }  # fmt: skip

    @staticmethod
    def model(run):
        """A module without dropout of its own that runs a function."""
        import torch

        class Model(torch.nn.Module):
            def forward(self, *given):
                return run(*given)

        return Model()

    @staticmethod
    def array(X):
        """An array of the framework."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(X))


class OfKeras(OfTorch):
    """Keras's kernel."""

    backend, place, name, layout = "tensorflow", "keras.ops", "dot_product_attention", "BTHD"
    forms: ClassVar = {
        "plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.7}, "mask": {"mask": PAIRS},
        "bias": {"bias": ADDED}, "both": {"mask": PAIRS, "bias": ADDED},
    }  # fmt: skip

    @staticmethod
    def model(run):
        """A layer that runs a function."""
        import keras

        class Model(keras.layers.Layer):
            def call(self, *given):
                return run(*given)

        return Model()

    @staticmethod
    def array(X):
        """An array of the framework."""
        import keras

        return keras.ops.convert_to_tensor(X)


class OfKerasModule(OfKeras):
    """Keras's kernel by its other name."""

    place, forms = "keras.ops.nn", {"causal": {"is_causal": True}}


class OfJax(OfTorch):
    """JAX's kernel."""

    backend, place, name, layout = "jax", "jax.nn", "dot_product_attention", "BTHD"
    forms: ClassVar = {
        "causal and shared": {"heads": G, "is_causal": True, "scale": 0.7},
        "masks": {"mask": PAIRS, "bias": ADDED, "local_window_size": 3},
        "lengths": {"key_value_seq_lengths": np.array([7, 4], "int32"), "local_window_size": (3, 1)},
    }  # fmt: skip

    @staticmethod
    def model(run):
        """A module that runs a function."""
        from flax import nnx

        class Model(nnx.Module):
            def __call__(self, *given):
                return run(*given)

        return Model()

    @staticmethod
    def array(X):
        """An array of the framework."""
        import jax

        return jax.numpy.asarray(X)


class OfMlx(OfTorch):
    """MLX's kernel."""

    backend, place, name = "mlx", "mlx.core.fast", "scaled_dot_product_attention"
    forms: ClassVar = {
        "plain": {"heads": G}, "causal": {"mask": "causal"}, "mask": {"mask": PAIRS}, "bias": {"mask": ADDED},
        "sinks": {"sinks": np.linspace(-1, 2, H, dtype="float32")},
    }  # fmt: skip

    @staticmethod
    def model(run):
        """A module that runs a function."""
        from mlx import nn

        class Model(nn.Module):
            def __call__(self, *given):
                return run(*given)

        return Model()

    @staticmethod
    def array(X):
        """An array of the framework."""
        import mlx.core

        return mlx.core.array(X)


EVERY = [
    pytest.param(kind, form, marks=pytest.mark.backends(kind.backend), id=f"{kind.place}: {form}")
    for kind in (OfTorch, OfKeras, OfKerasModule, OfJax, OfMlx)
    for form in kind.forms
]


@pytest.mark.parametrize(("kind", "form"), EVERY)
def test_each_form_of_a_kernel_is_read(kind, form):
    options = {name: kind.array(X) if isinstance(X, np.ndarray) else X for name, X in kind.forms[form].items()}
    given = [kind.array(X) for X in heads(getattr(kind, "layout", "BHTD"), options.pop("heads", H))]
    options |= {"scale": 0.5} if kind is OfMlx else {}
    place = importlib.import_module(kind.place)
    model = kind.model(lambda *heads: getattr(place, kind.name)(*heads, **options))
    report = parity.audit(model, *given)
    assert report, report
    assert [(row.kind, row.verdict, row.calls) for row in report.layers] == [(kind.name, "same", 1)]
    assert report.layers[0].ratio < 0.7
    assert any(FULL in note for note in report.notes)


KINDS = [pytest.param(kind, marks=pytest.mark.backends(kind.backend)) for kind in (OfTorch, OfKeras, OfJax, OfMlx)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_kernel_is_found(monkeypatch, kind):
    given = [kind.array(X) for X in heads(getattr(kind, "layout", "BHTD"))]
    place, options = importlib.import_module(kind.place), {"scale": 0.5}
    own = getattr(place, kind.name)

    def wrong(*args, **options):
        return own(*args, **options | {"scale": 0.55})

    wrong.__name__ = kind.name
    monkeypatch.setattr(place, kind.name, wrong)
    if kind is OfTorch:  # whose functions are seen by themselves
        from mha.models.frameworks import torch_kernels

        monkeypatch.setitem(torch_kernels.KERNELS, own, lambda *args, **options: {
            **dict(zip("qkv", args, strict=True)), "scale": 0.5})  # fmt: skip
    report = parity.audit(kind.model(lambda *heads: getattr(place, kind.name)(*heads, **options)), *given)
    assert verdicts(report) == {"": "differs"}, report
    assert report.mended is None
    assert not report


class Torch:
    """Modules of PyTorch that call a kernel, each with its own mask."""

    def __init__(self, masks, kinds=("", "")):
        import torch

        class Layer(torch.nn.Module):
            def __init__(self, mask, kind):
                super().__init__()
                self.mask, self.kind = torch.as_tensor(mask), kind

            def forward(self, X):
                return torch.nn.functional.scaled_dot_product_attention(X, X, X, attn_mask=self.mask)

        self.model = torch.nn.Sequential(*map(Layer, masks, kinds))
        self.X = torch.randn(B, H, Q, d, generator=torch.Generator().manual_seed(1))


@pytest.mark.backends("torch")
def test_masks_that_contradict_each_other_are_told():
    order, other = np.tri(Q, dtype=bool), np.tri(Q, k=1, dtype=bool)
    for masks, kinds, told in (
        ((order, order), ("", ""), False), ((order, other), ("", ""), True), ((order, other), ("a", "b"), False),
    ):  # fmt: skip
        one = Torch(masks, kinds)
        report = parity.audit(one.model, one.X)
        assert report, report
        assert any("masks contradict each other: 1 and 0" in note for note in report.notes) == told


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("places", "padding", "apart", "told"),
    [
        ([0, 1, 2, 0, 1, 2, 3], None, False, "the 2 texts in a row see each other"),
        ([0, 1, 2, 0, 1, 2, 3], None, True, ""), ([0, 1, 2, 3, 4, 5, 6], None, False, ""),
        ([1, 1, 1, 0, 1, 2, 3], [0, 0, 0, 1, 1, 1, 1], False, ""),
    ],
)  # fmt: skip
def test_positions_that_the_mask_does_not_fit_are_told(places, padding, apart, told):
    import torch

    T, texts = len(places), np.cumsum(np.diff(places, prepend=-1) < 1)
    mask = torch.as_tensor(np.tri(T, dtype=bool) & ((texts[:, None] == texts) | (not apart)))

    class Model(torch.nn.Module):
        def forward(self, X, position_ids, attention_mask=None):
            return torch.nn.functional.scaled_dot_product_attention(X, X, X, attn_mask=mask)

    given = {} if padding is None else {"attention_mask": torch.tensor([padding] * B)}
    report = parity.audit(Model(), torch.randn(B, H, T, d), position_ids=torch.tensor([places] * B), **given)
    assert report, report
    notes = [note for note in report.notes if "does not fit the positions" in note]
    assert len(notes) == bool(told)
    assert told in "".join(notes)


@pytest.mark.backends("torch")
def test_a_kernel_that_cannot_be_read_is_not_known():
    import torch

    def run(X):
        return torch.nn.functional.scaled_dot_product_attention(X, X, X[..., :0])

    report = [None]
    with pytest.raises(ValueError, match=r"no attention layer of the model is known.*what enters or leaves its kernel"):
        report[0] = parity.audit(OfTorch.model(run), torch.ones(B, H, Q, d))
    assert report == [None]


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.filterwarnings("ignore:torch.compile with fullgraph=True found no compiled frames")  # of PyTorch 2.12
def test_functions_of_flex_attention_are_evaluated():
    import torch
    from torch.nn.attention import flex_attention as flex

    mask = flex.create_block_mask(lambda b, h, q, k: q >= k - 2, None, None, Q, K, device="cpu")

    def bend(score, b, h, q, k):
        return 3 * torch.tanh(score / 3) + 0.1 * h * (q - k)

    def run(q, k, v):
        return flex.flex_attention(q, k, v, score_mod=bend, block_mask=mask, enable_gqa=True)

    report = parity.audit(OfTorch.model(run), *map(OfTorch.array, heads(heads_of_keys=G)))
    assert report, report
    assert [row.kind for row in report.layers] == ["flex_attention"]
    compiled = torch.compile(flex.flex_attention)
    model = OfTorch.model(lambda q, k, v: compiled(q, k, v, scale=0.3))
    assert parity.audit(model, *map(OfTorch.array, heads()))


@pytest.mark.backends("torch")
def test_arguments_of_functions_of_transformers_are_read():
    import torch

    from mha.models.frameworks.torch_kernels import read_function

    def fused(module, query, key, value, attention_mask, scaling=None, is_causal=None, **more):
        """A function of the library."""

    def with_levels(module, query, key, value, attention_mask, levels=None):
        """A function with an argument of its own."""

    def flash(module, query, key, value, attention_mask):
        """A function that has texts packed."""

    module, (q, k, v) = types.SimpleNamespace(), map(torch.from_numpy, heads())
    read = functools.partial(read_function, fused, False)
    assert read((module, q, k, v, None), {"scaling": 0.5, "softcap": 3.0}) == {
        "q": q, "k": k, "v": v, "causal": True, "scale": 0.5, "softcap": 3.0}  # fmt: skip
    module.is_causal = False
    assert not read((module, q, k, v), {"attention_mask": None})["causal"]
    assert read((module, q, k, v, None, 0.25, True), {})["causal"]
    assert read((module, q, k, v, None, 0.25), {})["scale"] == 0.25
    assert not read((module, q[:, :, :1], k, v, None), {"is_causal": True})["causal"]
    assert "causal" not in read_function(fused, True, (module, q, k, v, None), {"is_causal": True})
    seen = torch.from_numpy(PAIRS)
    given = read((module, q, k, v, torch.cat([seen, seen], -1)), {"position_bias": torch.from_numpy(ADDED)})
    np.testing.assert_array_equal(given["mask"], np.broadcast_to(PAIRS, given["mask"].shape))
    np.testing.assert_array_equal(given["bias"], ADDED)
    module.sinks = torch.arange(H)
    assert read((module, q, k, v, seen), {})["sinks"].tolist() == [*range(H)]
    assert read((module, q, k, v, seen), {"s_aux": 2 * module.sinks})["sinks"].tolist() == [*range(0, 2 * H, 2)]
    for function, more, what in (
        (fused, {"sinks": torch.ones(2)}, "sinks have shape"), (with_levels, {"levels": 1}, "levels of with_levels"),
        (flash, {}, "flash is not read"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            read_function(function, False, (module, q, k, v, seen), more)


@pytest.mark.backends("torch")
def test_a_kernel_that_is_left_out_is_not_judged():
    one = Torch((np.ones((Q, Q), bool), np.tri(Q, dtype=bool)))
    report = parity.audit(one.model, one.X, layers={"1": None})
    assert [(row.path, row.kind, row.verdict) for row in report.layers] == [
        ("0", OfTorch.name, "same"), ("1", "left out", "not known")]  # fmt: skip
    assert report
