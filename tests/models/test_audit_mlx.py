"""`parity.audit`, `watch` and records: what is MLX's own in its models."""

import dataclasses

import audited
import mlx.core as mx
import numpy as np
import pytest
from audited import LENGTHS, B, D, H, T, d, of_mlx
from audited.of_mlx import Cache, compiles, drawn
from mlx import nn, optimizers
from mlx.utils import tree_flatten

from mha import parity
from mha.models.frameworks import mlx as taps

from .verdicts import verdicts

pytestmark = pytest.mark.backends("mlx")

EARLIER = "its cache has tokens from before this was watched; its kernel is right for what entered it"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_masks_of_mlx_arrive_however_they_are_given(dtype):
    class Forgets(nn.MultiHeadAttention):
        def __call__(self, queries, keys, values, mask):
            return super().__call__(queries, keys, values)

    layer, rng = drawn(nn.MultiHeadAttention(D, H, bias=True)), np.random.default_rng(1)
    layer.set_dtype(getattr(mx, dtype))

    def given(X):
        return mx.array(X).astype(getattr(mx, dtype))

    X, Y = (given(rng.normal(size=(B, size, D))) for size in (T, T + 2))
    bias = rng.normal(size=(1, H, T, T + 2))
    hidden = np.where(rng.random((B, 1, T, T + 2)) < 0.3, -np.inf, 0)
    pairs = np.arange(T + 2) < LENGTHS[:, None, None, None]  # (B, 1, 1, K)
    for mask in (None, "causal", mx.array(pairs), mx.tri(T, T + 2, dtype=mx.bool_), given(bias), given(bias + hidden)):
        report = parity.audit(layer, X, Y, Y, mask)
        assert report, report
        if mask is not None:
            layer.__class__ = Forgets
            assert not parity.audit(layer, X, Y, Y, mask=mask)
            layer.__class__ = nn.MultiHeadAttention


def test_models_of_mlx_are_watched_in_a_training_step_of_their_own_and_compilers_set_back():
    one = audited.make("mlx.encoder")
    one.model.checkpoint = True
    optimizer = optimizers.SGD(1e-3)
    state = [one.model.state, optimizer.state]
    loss_of = nn.value_and_grad(one.model, lambda *args: (one.model(*args) ** 2).mean())

    def step(*args):
        loss, gradients = loss_of(*args)
        optimizer.update(one.model, gradients)
        return loss

    compiled = mx.compile(step, inputs=state, outputs=state)
    with parity.watch(one.model) as report:
        mx.eval(compiled(*one.args), state)
        assert not compiles()
    assert report, report
    assert compiles()
    mx.disable_compile()
    try:
        assert parity.audit(one.model, *one.args)
        assert not compiles()
    finally:
        mx.enable_compile()


def test_numbers_inside_a_transformation_of_mlx_are_not_known():
    one = audited.make("mlx.taught")
    (X,) = one.args
    with parity.watch(one.model, layers=one.layers) as report:
        mx.eval(mx.vmap(one.model)(X[None]))
    assert verdicts(report) == dict.fromkeys(one.paths, "not known")
    assert "transformation of MLX" in report.layers[0].note
    with parity.watch(one.model, layers={"layers.0": audited.TAUGHT}) as report:
        mx.eval(mx.vmap(one.model.layers[1])(X[None]), one.model(X))
    assert verdicts(report) == {"layers.0": "same", "layers.1": "not known"}
    last = one.model.layers[1].to_out
    kept = last.parameters()

    def call(arrays):
        last.update(arrays)
        return one.model(X)

    with parity.watch(one.model, layers=one.layers) as report:  # of the last one, what enters is known
        mx.eval(mx.vmap(call)({name: X[None] for name, X in kept.items()}))
    last.update(kept)
    assert verdicts(report) == {"layers.0": "same", "layers.1": "not known"}
    assert "transformation of MLX" in report.layers[1].note


def test_caches_of_mlx_that_are_lists_are_followed():
    one = audited.make("mlx.described")
    (X,) = one.args

    def decode(caches):
        one.model(X[:, :4], cache=caches)
        for cache in caches:
            cache.trim(1)
        one.model(X[:, 3:5], list(caches))  # another list of the same caches
        one.model(X[:, 5:], cache=caches)
        return caches

    with parity.watch(one.model) as report:
        caches = decode([Cache(), Cache()])
    with parity.record(one.model, weights=True) as record:
        decode([Cache(), Cache()])
    assert "trim" not in vars(caches[0])
    for found in (report, parity.audit_record(record)):
        assert found, found
        assert [row.calls for row in found.layers] == [3, 3]
    with parity.watch(one.model) as report:
        one.model(X[:, 5:], cache=caches)
    assert {row.note for row in report.layers} == {EARLIER}
    with parity.watch(one.model) as report:
        caches = [Cache(), Cache()]
        one.model(X[:, :4], cache=caches)
        for cache in caches:
            cache.kept = [A[:1] for A in cache.kept]
        one.model(X[:1, 4:], cache=caches)
    assert {row.note for row in report.layers} == {EARLIER}


def test_a_model_of_mlx_that_is_the_reference_says_what_is_true():
    one, right = (audited.make("mlx.described") for _ in range(2))
    one.model.args = dataclasses.replace(one.model.args, rope_theta=7.0)
    assert not parity.audit(one.model, *one.args)
    report = parity.audit(one.model, *one.args, like=right.model)
    assert report, report
    assert report.truth == "the Stack of like"


def test_kernels_of_gpt2_lie_in_models_of_mlx_as_in_its_files():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)

        def __call__(self, X):
            q, k, v = (A.reshape(B, T, H, d).swapaxes(1, 2) for A in mx.split(self.c_attn(X), 3, -1))
            pooled = mx.fast.scaled_dot_product_attention(q, k, v, scale=d**-0.5, mask="causal")
            return self.c_proj(pooled.swapaxes(1, 2).reshape(B, T, D))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.args = dataclasses.make_dataclass("Args", [("model_type", str), ("n_head", int)])("gpt2", H)
            self.h = [{"attn": Attention()}]

        def __call__(self, X):
            return self.h[0]["attn"](X)

    model, X = drawn(Model()), mx.array(audited.inputs())
    assert parity.audit(model, X)
    right = {name: np.array(A) for name, A in tree_flatten(model.parameters())}
    as_files = {name: A.T if name.endswith("weight") else A for name, A in right.items()}
    for like in (model.parameters(), as_files):  # arrays of MLX lie as in its models, others as transformers has them
        assert parity.audit(model, X, like=like)
    with parity.record(model) as record:
        model(X)
    with parity.record(model, weights=True) as other:
        model(X)
    assert parity.compare_records(other, record).audits[1]
    model.h[0]["attn"].c_proj.weight = model.h[0]["attn"].c_proj.weight.T
    assert not parity.audit(model, X, like=as_files)


def test_a_softmax_that_was_imported_by_its_name_is_told(monkeypatch):
    monkeypatch.setattr(of_mlx, "imported", mx.softmax, raising=False)
    monkeypatch.setattr(of_mlx.nn, "softmax", lambda X: of_mlx.imported(X, axis=-1))
    before = mx.softmax
    one = audited.make("mlx.taught")
    report = parity.audit(one.model, *one.args, layers={"layers.0": audited.TAUGHT})
    assert verdicts(report) == {"layers.0": "same", "layers.1": "not known"}
    assert of_mlx.imported is mx.softmax is before


def test_a_fused_kernel_of_mlx_outside_of_known_layers_is_judged():
    from recorded import of_mlx, tokens

    report = parity.audit(of_mlx.Decoder(), mx.array(tokens()))
    assert report, report
    assert {row.kind for row in report.layers} == {"scaled_dot_product_attention"}


def test_projections_of_mlx_that_are_no_plain_arrays_are_not_known():
    class LoRALinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear, self.lora_a, self.lora_b = linear, mx.zeros((D, 2)), mx.zeros((2, D))

        def __call__(self, X):
            return self.linear(X) + X @ self.lora_a @ self.lora_b

    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(D, D)
            self.factor = mx.ones(D)

    one = nn.Linear(D, D)
    reasons = {
        "": one, "adapted": LoRALinear(one), "without weights": nn.Identity(),
        "sharded over devices": nn.AllToShardedLinear(D, D),
        "quantised": nn.QuantizedLinear(64, D), "adapted: it has factor, too": Scaled(),
    }  # fmt: skip
    assert {reason: taps.odd(module) for reason, module in reasons.items()} == {reason: reason for reason in reasons}


def test_a_module_of_mlx_that_is_there_twice_is_judged_once_and_one_may_be_told_by_another():
    one = audited.make("mlx.taught")
    one.model.layers = [one.model.layers[0]] * 2
    report = parity.audit(one.model, *one.args, layers={"layers.0": audited.TAUGHT})
    assert report, report
    assert [row.calls for row in report.layers] == [2]
