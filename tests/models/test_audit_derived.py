"""Classes that derive from a framework's layer: judged as it only if its call runs, else not known."""

import functools

import audited
import numpy as np
import pytest
from audited import B, D, H, T

import mha
from mha import parity
from mha.core import dispatch
from mha.parity import audit_record, record

from .own_layers import OWN, around, context, notes, of_framework, verdicts

__all__ = ["context"]  # around each test here, too


def classes(backend):
    """Classes of a framework's own layers, how each is made, and the name of the method that is called."""
    if backend == "torch":
        import torch

        return {torch.nn.MultiheadAttention: lambda kind: kind(D, H, batch_first=True)}
    if backend == "tensorflow":
        from keras import layers

        return {
            layers.MultiHeadAttention: lambda kind: kind(H, D // H),
            layers.GroupQueryAttention: lambda kind: kind(D // H, H, H),
        }
    if backend == "jax":
        from flax import nnx

        return {nnx.MultiHeadAttention: lambda kind: kind(H, D, decode=False, rngs=nnx.Rngs(0))}
    from mlx import nn

    return {nn.MultiHeadAttention: lambda kind: kind(D, H)}


@pytest.mark.backends(*OWN)
def test_a_class_is_judged_as_its_base_only_if_the_call_of_that_runs(backend, tmp_path):
    method, X = dispatch.facts("METHOD")[backend], of_framework(backend, audited.inputs())
    for kind, made in classes(backend).items():
        double = {method: doubling(backend)}
        for body, expected in (({}, "same"), (double, "not known")):
            own = type("Own", (kind,), body)
            model = around(
                backend, lambda own=own, made=made: made(own), lambda layer, X: first(layer(*[X] * arrays(backend)))
            )
            verdict, note = notes(parity.audit(model, X))["layer"]
            assert verdict == expected, note
            with record(model, tmp_path / f"{kind.__name__} {expected}", weights=True):
                model(X)
            assert verdicts(audit_record(tmp_path / f"{kind.__name__} {expected}")) == {"layer": expected}
        assert f"the call of {kind.__name__} did not run, but that of Own" in note
        taught = parity.audit(model, X, layers={"layer": lambda module: mha.MultiHeadAttention(D, H)})
        assert verdicts(taught) == {"layer": "differs"}  # what it is said to compute


def first(output):
    return output[0] if isinstance(output, tuple) else output


def doubling(backend):
    """A call that takes what a framework's own layer takes, and computes something else."""
    if backend == "jax":
        return lambda self, inputs_q: 2 * inputs_q
    if backend == "mlx":
        return lambda self, queries, keys, values: 2 * queries
    return lambda self, query, value, key=None, query_mask=None, value_mask=None: 2 * query


def arrays(backend):
    """How many arrays a layer takes."""
    return {"tensorflow": 2, "jax": 1}.get(backend, 3)


@pytest.mark.backends("torch", "tensorflow")
def test_a_call_that_is_set_on_a_layer_is_not_judged_as_that_of_its_class(backend):
    def make():
        kind, made = next(iter(classes(backend).items()))
        layer = made(kind)
        if backend == "tensorflow":
            layer.build((B, T, D), (B, T, D))
        setattr(layer, dispatch.facts("METHOD")[backend], functools.partial(doubling(backend), layer))
        return layer

    model = around(backend, make, lambda layer, X: layer(*[X] * arrays(backend)))
    verdict, note = notes(parity.audit(model, of_framework(backend, audited.inputs())))["layer"]
    assert verdict == "not known"
    assert "did not run, but another one" in note


@pytest.mark.backends("jax")
def test_a_class_of_linen_is_judged_as_its_base_only_if_the_call_of_that_runs():
    import jax
    from flax import linen

    class Inherits(linen.MultiHeadDotProductAttention):
        pass

    class Calls(linen.MultiHeadDotProductAttention):
        @linen.compact
        def __call__(self, X):
            return super().__call__(X, mask=linen.make_causal_mask(X[..., 0]))

    class Doubles(linen.MultiHeadDotProductAttention):
        @linen.compact
        def __call__(self, X):
            return 2 * super().__call__(X) if self.is_initializing() else 2 * X

    for kind, expected in ((Inherits, "same"), (Calls, "same"), (Doubles, "not known")):

        class Model(linen.Module):
            layer: linen.Module

            def __call__(self, X):
                return self.layer(X)

        model, X = Model(kind(H, qkv_features=D)), audited.inputs()
        made = jax.eval_shape(model.init, jax.random.key(0), X)  # which compiles nothing
        rng = np.random.default_rng(1)
        variables = jax.tree.map(lambda A: rng.normal(size=A.shape, scale=0.4).astype("float32"), made)  # noqa: B023
        verdict, note = notes(parity.audit(model, variables, X))["layer"]
        assert verdict == expected, note
    assert "did not run, but that of Doubles" in note
