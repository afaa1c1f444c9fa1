"""The frameworks' own layers in an audit: each argument of their calls is read, or idle, or named as not known.

A class that derives from one is judged as it only if its call runs, else not known.

Letters: B samples, T tokens, H heads, D features, S slots.
"""

import copy
import functools
import importlib
import inspect

import audited
import numpy as np
import pytest
from audited import B, D, H, T

import mha
from mha import parity
from mha.core import dispatch
from mha.parity import audit_record, record

from .verdicts import notes, verdicts

OWN = ("torch", "tensorflow", "jax", "mlx")
# What the constructors take, all of it: what says the size, kind or start of weights, or is asked by `mha.from_native`.
MADE = {
    "torch": "embed_dim num_heads dropout bias add_bias_kv add_zero_attn kdim vdim batch_first device dtype",
    "tensorflow": "num_heads key_dim value_dim dropout use_bias output_shape attention_axes sliding_window use_gate "
    "seed flash_attention kernel_initializer bias_initializer kernel_regularizer bias_regularizer activity_regularizer "
    "kernel_constraint bias_constraint head_dim num_query_heads num_key_value_heads kwargs",
    "jax": "num_heads in_features qkv_features out_features num_kv_heads in_kv_features dtype param_dtype dropout_rate "
    "broadcast_dropout deterministic precision kernel_init out_kernel_init bias_init out_bias_init use_bias "
    "attention_fn decode normalize_qk qkv_promote_dtype out_promote_dtype ln_promote_dtype qkv_dot_general "
    "out_dot_general qkv_dot_general_cls out_dot_general_cls rngs keep_rngs kernel_metadata out_kernel_metadata "
    "bias_metadata out_bias_metadata query_ln_scale_metadata key_ln_scale_metadata force_fp32_for_softmax "
    "qk_attn_weights_einsum_cls attn_weights_value_einsum_cls parent name",
    "mlx": "dims num_heads query_input_dims key_input_dims value_input_dims value_dims value_output_dims bias",
}


@pytest.fixture(autouse=True)
def context(backend):
    """What a framework needs around its arrays."""
    with dispatch.load(backend).context("float32"):
        yield


def around(backend, make, call):
    """A model with one layer, `layer`, and a function of it and of arrays that is the model's call."""
    module = {"torch": "torch.nn.Module", "tensorflow": "keras.Model", "jax": "flax.nnx.Module", "mlx": "mlx.nn.Module"}
    place, _, name = module[backend].rpartition(".")

    def begin(self):
        super(kind, self).__init__()
        self.layer = make()

    def run(self, X, *args, **kwargs):
        return call(self.layer, X, *args, **kwargs)

    base = getattr(importlib.import_module(place), name)
    kind = type("Model", (base,), {"__init__": begin, dispatch.facts("METHOD")[backend]: run})
    return kind()


def of_framework(backend, X):
    return dispatch.load(backend).tensor(X)


@pytest.mark.backends(*OWN)
def test_each_argument_that_a_layer_takes_is_declared(backend):
    calls = importlib.import_module(f"mha.models.frameworks.{backend}").CALLS
    method = dispatch.facts("METHOD")[backend]
    for kind, known in calls.items():
        taken = [name for name in inspect.signature(getattr(kind, method)).parameters if name != "self"]
        assert set(taken) - {*known.read, *known.idle} <= {"input_positions"}, kind  # of nnx, for another attention_fn
        assert not set(known.read) & set(known.idle), kind
        made = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
        assert not set(made) - set(MADE[backend].split()), kind
    for name in dispatch.facts("LAYERS")[backend]:
        place, _, last = name.rpartition(".")
        assert issubclass(getattr(importlib.import_module(place), last), tuple(calls)), name


def derived(backend):
    """A class that derives from a framework's own layer, adds the order of tokens, and has an argument of its own."""
    if backend == "torch":
        import torch

        class Ordered(torch.nn.MultiheadAttention):
            def forward(self, X, attn_mask=None, louder=False):
                order = torch.ones(T, T, dtype=torch.bool).triu(1)
                mask = order if attn_mask is None else attn_mask | order
                return super().forward(X, X, X, attn_mask=mask)[0] * (2 if louder else 1)

        return lambda: Ordered(D, H, batch_first=True), {"attn_mask": torch.ones(T, T, dtype=torch.bool).triu(3)}
    if backend == "tensorflow":
        import keras

        class Ordered(keras.layers.MultiHeadAttention):
            def call(self, query, value, key=None, attention_mask=None, louder=False):
                if attention_mask is not None:
                    attention_mask = np.tri(T, dtype=bool) & attention_mask
                output = super().call(query, value, key, attention_mask=attention_mask, use_causal_mask=True)
                return output * (2 if louder else 1)

        return lambda: Ordered(H, D // H), {"attention_mask": np.tri(T, T, 2, dtype=bool)[None].repeat(B, 0)}
    if backend == "jax":
        from flax import nnx

        class Ordered(nnx.MultiHeadAttention):
            def __call__(self, X, mask=None, louder=False):
                order = nnx.make_causal_mask(X[..., 0])
                mask = nnx.combine_masks(order, mask)
                return super().__call__(X, mask=mask) * (2 if louder else 1)

        return lambda: Ordered(H, D, decode=False, rngs=nnx.Rngs(0)), {"mask": np.tri(T, T, 2, dtype=bool)[None, None]}
    import mlx.core as mx
    from mlx import nn

    class Ordered(nn.MultiHeadAttention):
        def __call__(self, X, mask=None, louder=False):
            order = mx.tri(T, dtype=mx.bool_)
            output = super().__call__(X, X, X, order if mask is None else order & mask)
            return output * (2 if louder else 1)

    return lambda: Ordered(D, H), {"mask": mx.tri(T, T, 2, dtype=mx.bool_)}


@pytest.mark.backends(*OWN)
def test_what_a_derived_class_adds_is_read_and_what_it_takes_of_its_own_is_named(backend):
    make, hiding = derived(backend)
    both = backend == "tensorflow"  # which takes the values, too
    model = around(backend, make, lambda layer, X, **options: layer(X, *[X] * both, **options))
    X = of_framework(backend, audited.inputs())
    assert verdicts(parity.audit(model, X)) == {"layer": "same"}
    assert verdicts(parity.audit(model, X, louder=False)) == {"layer": "same"}
    other = "Ordered calls the class that it derives from with another"
    for options, reason in (({"louder": True}, "argument louder of Ordered is not read"), (hiding, other)):
        report = parity.audit(model, X, **options)
        assert not report
        (verdict, note) = notes(report)["layer"]
        assert verdict == "not known"
        assert reason in note, note


@pytest.mark.backends("torch", "tensorflow", "mlx")
def test_our_layers_are_judged_with_their_caches(backend):
    attention = mha.MultiHeadAttention(D, H, backend=backend, seed=1, bias=True)
    X = of_framework(backend, audited.inputs())

    def call(layer, X, cache=None):
        inputs = (X, None, None) if cache is not None and cache.frozen else (X, 2 * X, 3 * X)
        return layer(*inputs, causal=cache is None or not cache.frozen, cache=cache)

    model = around(backend, lambda: attention.layer, call)
    assert verdicts(parity.audit(model, X)) == {"layer": "same"}
    cache = attention.cache(B, T)
    with parity.watch(model) as report:
        for at in range(3):
            _, cache = model(X[:, at : at + 1], cache=cache)
    assert notes(report) == {"layer": ("same", "")}
    assert report.layers[0].calls == 3
    assert verdicts(parity.audit(model, X[:, 3:5], cache=cache)) == {"layer": "same"}
    np.testing.assert_array_equal(mha.to_numpy(cache.lengths), [3, 3])  # it is not used up
    assert verdicts(parity.audit(model, X[:, :2], cache=attention.cache_of(2 * X, 3 * X))) == {"layer": "same"}


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "given", ["order", "hint", "hint beside padding", "numbers in padding", "both", "heads", "weights of each head"]
)
def test_masks_of_pytorch_are_read_however_they_are_given(given):
    import torch

    torch.manual_seed(2)
    order = torch.ones(T, T, dtype=torch.bool).triu(1)
    numbers = torch.zeros(T, T).masked_fill(order, -torch.inf)
    padding = torch.arange(T) >= torch.tensor(audited.LENGTHS)[:, None]  # (B, T)
    added = torch.randn(B, T).masked_fill(padding, -torch.inf)
    options = {
        "order": {"attn_mask": order},
        "hint": {"attn_mask": order, "is_causal": True, "need_weights": False},
        "hint beside padding": {"attn_mask": numbers, "is_causal": True, "key_padding_mask": added},
        "numbers in padding": {"key_padding_mask": added},
        "both": {"attn_mask": torch.randn(T, T).masked_fill(order, -1e4), "key_padding_mask": added},
        "heads": {"attn_mask": torch.randn(B * H, T, T)},
        "weights of each head": {"attn_mask": numbers, "average_attn_weights": False},
    }[given]
    for batch_first in (True, False):
        X = torch.tensor(audited.inputs())
        X = X if batch_first else X.swapaxes(0, 1)
        layer = torch.nn.MultiheadAttention(D, H, batch_first=batch_first)
        model = around("torch", lambda layer=layer: layer, lambda layer, X, **options: layer(X, X, X, **options)[0])
        assert verdicts(parity.audit(model, X, **options)) == {"layer": "same"}


@pytest.mark.backends("torch")
def test_a_hint_of_pytorch_that_is_wrong_is_not_known():
    import torch

    X = torch.tensor(audited.inputs())
    layer = torch.nn.MultiheadAttention(D, H, batch_first=True)
    model = around("torch", lambda: layer, lambda layer, X, **options: layer(X, X, X, **options)[0])
    wider = torch.ones(T, T, dtype=torch.bool).triu(2)
    shifted = torch.zeros(T, T).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf) + 0.5
    for mask in (wider, shifted):
        report = parity.audit(model, X, attn_mask=mask, is_causal=True, need_weights=False)
        verdict, note = notes(report)["layer"]
        assert verdict == "not known"
        assert "is_causal=True says" in note


def nnx_model(kind=None, slots=None, **options):
    """A model of nnx with one layer, and with room in its cache for so many tokens."""
    from audited import of_nnx
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self):
            self.one = (kind or nnx.MultiHeadAttention)(4, 12, use_bias=False, rngs=nnx.Rngs(0), **options)

        def __call__(self, X, **options):
            return self.one(X, **options)

    model = of_nnx.drawn(Model())
    if slots:
        model.one.init_cache((B, slots, 12))
    return model


def numbers(tokens):
    return np.random.default_rng(3).normal(size=(B, tokens, 12)).astype("float32")


SAME = {"one": "same"}


@pytest.mark.backends("jax")
def test_order_and_idle_arguments_of_nnx_are_read():
    from flax import nnx

    model = nnx_model(decode=False, dropout_rate=0.3, broadcast_dropout=False)
    X, keep = numbers(5), np.broadcast_to(np.arange(5) < np.array([5, 3])[:, None, None, None], (B, 1, 5, 5))
    options = {"is_causal": True, "mask": keep, "deterministic": False, "rngs": nnx.Rngs(1)}
    assert verdicts(parity.audit(model, X, **options)) == SAME
    assert verdicts(parity.audit(model, X, is_causal=True, deterministic=True)) == SAME


@pytest.mark.backends("jax")
@pytest.mark.parametrize("where", ["in the layer", pytest.param("in the call", marks=pytest.mark.long("jax"))])
def test_decoding_of_nnx_is_judged_step_by_step_by_the_cache(where):
    made, given = ({"decode": True}, {}) if where == "in the layer" else ({}, {"decode": True})
    model, X = nnx_model(slots=6, num_kv_heads=2, normalize_qk=True, **made), numbers(6)
    model(X[:, :1], **given)  # a cache from before is known, too
    with parity.watch(model) as report:
        for at in range(1, 4):
            model(X[:, at : at + 1], **given)
    assert verdicts(report) == SAME
    assert report.layers[0].calls == 3
    assert "the same: 1 layer" in str(report)
    hidden = np.broadcast_to(np.arange(6) != 1, (B, 1, 1, 6))
    assert verdicts(parity.audit(model, X[:, 4:5], mask=hidden, **given)) == SAME
    assert int(model.one.cache_index[...]) == 4  # as it was


@pytest.mark.backends("jax")
def test_what_the_cache_of_nnx_does_not_say_is_not_known():
    model, X = nnx_model(slots=3, decode=True), numbers(4)
    model(X[:, :1])
    report = parity.audit(model, X[:, 1:2], is_causal=True)
    is_left_out = np.array_equal(*(copy.deepcopy(model)(X[:, 1:2], is_causal=causal) for causal in (True, False)))
    assert verdicts(report) == (SAME if is_left_out else {"one": "not known"})
    assert is_left_out or "is_causal=True shows the first slot alone" in report.layers[0].note
    with parity.watch(model) as report:
        for at in range(1, 4):
            model(X[:, at : at + 1])
    assert verdicts(report) == {"one": "not known"}
    assert "its cache has 3 slots, and this is token 4, which overwrites the last" in report.layers[0].note


@pytest.mark.backends("jax")
def test_a_mistake_in_a_step_of_decoding_is_named_and_mended(tmp_path):
    from flax import nnx

    class Sharp(nnx.MultiHeadAttention):
        def __call__(self, inputs_q, **options):
            return super().__call__(3 * inputs_q, inputs_q, **options)

    model, X = nnx_model(Sharp, 6, decode=True), numbers(5)
    for at in range(4):
        model(X[:, at : at + 1])
    report = parity.audit(model, X[:, 4:])
    assert verdicts(report) == {"one": "differs"}
    assert "another scale" in str(report)
    assert report.mended.wrong == ()
    assert int(model.one.cache_index[...]) == 4
    with pytest.raises(ValueError, match="has a cache"):
        report.first.save(tmp_path / "case")


@pytest.mark.backends("jax")
def test_records_of_decoding_are_judged_elsewhere(tmp_path):
    model, X = nnx_model(slots=3, decode=True), numbers(3)
    with record(model, tmp_path / "record", weights=True):
        for at in range(3):
            model(X[:, at : at + 1])
    report = audit_record(tmp_path / "record")
    assert verdicts(report) == SAME
    assert report.layers[0].calls == 3
    assert report.device == ""  # which a record does not say


@pytest.mark.backends("jax")
def test_decoding_of_linen_is_judged_by_variables_and_bound():
    import jax
    from flax import linen

    class Model(linen.Module):
        @linen.compact
        def __call__(self, X):
            return linen.MultiHeadAttention(4, qkv_features=12, decode=True, name="one")(X)

    model, X = Model(), numbers(5)
    rng = np.random.default_rng(1)
    made = jax.eval_shape(model.init, jax.random.key(0), X)  # which compiles nothing
    params = jax.tree.map(lambda A: rng.normal(size=A.shape, scale=0.4).astype("float32"), made["params"])
    cache = jax.tree.map(lambda A: np.zeros(A.shape, A.dtype), made["cache"])
    assert verdicts(parity.audit(model, {"params": params}, X, mutable=["cache"])) == SAME  # which makes a cache
    for at in range(2):
        variables = {"params": params, "cache": cache}
        assert verdicts(parity.audit(model, variables, X[:, at : at + 1], mutable=["cache"])) == SAME
        cache = model.apply(variables, X[:, at : at + 1], mutable=["cache"])[1]["cache"]
    bound = model.bind({"params": params, "cache": cache}, mutable=["cache"])
    assert verdicts(parity.audit(bound, X[:, 2:3])) == SAME
    assert int(bound.variables["cache"]["one"]["cache_index"]) == 2  # as it was


# Classes that derive from a framework's layer


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
