"""`parity.audit` and `watch`: what is one framework's own in its models."""

import audited
import numpy as np
import pytest
from audited import LENGTHS, B, D, H, T, d

from mha import parity
from mha.core import dispatch

from .verdicts import verdicts


@pytest.fixture(autouse=True)
def context(backend):
    """What MXNet needs around its arrays."""
    with dispatch.load(backend).context("float32"):
        yield


@pytest.mark.backends("tensorflow")
def test_compiled_models_of_keras_are_watched_in_predict_and_fit():
    one = audited.make("keras.own")
    X = one.args[0]
    before = one.model.predict(X, verbose=0)
    with parity.watch(one.model) as report:
        np.testing.assert_allclose(one.model.predict(X, verbose=0), before, rtol=1e-4)
    assert report
    one.model.compile("sgd", "mse")
    with parity.watch(one.model) as report:
        one.model.fit(X, before, verbose=0)
    assert report
    assert verdicts(report) == dict.fromkeys(one.paths, "same")


@pytest.mark.backends("tensorflow")
@pytest.mark.filterwarnings("ignore:.*destroy the mask information")  # Keras's layer of shared heads, of itself
@pytest.mark.parametrize("kind", ["MultiHeadAttention", "GroupQueryAttention"])
def test_masks_of_keras_arrive_however_they_are_given(kind):
    import keras

    sizes = (H, d) if kind == "MultiHeadAttention" else (d, 4, 2)
    words, X = keras.Input((T,), dtype="int32", name="words"), keras.Input((T, T), dtype="bool", name="pairs")
    part, ordered = (getattr(keras.layers, kind)(*sizes, name=name) for name in ("part", "ordered"))
    Y = keras.layers.Embedding(37, D, mask_zero=True)(words)
    Z = part(Y, Y, attention_mask=X)
    Z = Z + ordered(Z, Y, use_causal_mask=True, return_attention_scores=True)[0]
    model = keras.Model([words, X], Z)
    rng = np.random.default_rng(1)
    tokens = np.where(np.arange(T) < LENGTHS[:, None], rng.integers(1, 37, (B, T)), 0)
    pairs = rng.random((B, T, T)) < 0.7
    for A in model.trainable_variables:
        A.assign(rng.normal(size=A.shape, scale=0.5))
    with parity.watch(model) as report:
        model([tokens, pairs])
        model({"words": tokens, "pairs": pairs})
    assert verdicts(report) == {"part": "same", "ordered": "same"}
    assert [row.calls for row in report.layers] == [2, 2]
    assert parity.audit(model, [tokens, np.ones_like(pairs)])


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("given", ["list", "dict"])
def test_inputs_of_a_graph_of_keras_are_known_by_name(given):
    import keras
    from audited import of_keras

    X, keep = keras.Input((T, D), B, name="X"), keras.Input((T,), B, dtype="bool", name="keep")
    parts = of_keras.Dense("", name="one")
    model = of_keras.drawn_of(keras.Model([X, keep], parts(X) + 0 * keras.ops.cast(keep[..., None], "float32")))
    args = {"X": audited.inputs(), "keep": np.arange(T) < LENGTHS[:, None]}
    lesson = audited.TAUGHT | {"padding": "keep"}
    report = parity.audit(model, args if given == "dict" else list(args.values()), layers={"one": lesson})
    assert report  # padding comes last, where the order hides it anyway
    args["keep"][:, 0] = False
    report = parity.audit(model, args if given == "dict" else list(args.values()), layers={"one": lesson})
    assert verdicts(report) == {"one": "differs"}


@pytest.mark.backends("tensorflow")
def test_layers_of_keras_that_share_a_name_have_a_path_each_and_new_models_are_built():
    import keras
    from audited import of_keras

    inner = [keras.Sequential([keras.layers.Dense(D, name="x"), of_keras.Dense("", name="y")]) for _ in range(2)]

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.both = {"a": inner[0], "b": inner[1]}

        def call(self, X):
            return self.both["b"](self.both["a"](X))

    report = parity.audit(Model(), audited.inputs(), layers={"both.?.y": audited.TAUGHT})
    assert verdicts(report) == {"both.a.y": "same", "both.b.y": "same"}


@pytest.mark.backends("jax")
def test_modules_of_linen_need_their_variables_and_a_call():
    one = audited.make("linen.own")
    with pytest.raises(TypeError, match="no arrays; call audit\\(model, variables, x\\)"):
        parity.audit(one.model, one.args[1])
    with pytest.raises(TypeError, match="whose parts only a call shows"), parity.watch(one.model.bind(one.args[0])):
        pass


@pytest.mark.backends("jax")
def test_modules_of_linen_are_judged_by_other_variables_and_by_bound_modules():
    wrong, right = audited.make("linen.own", "kernel"), audited.make("linen.own")
    variables = right.args[0]
    for like in (variables, right.model.bind(variables, **right.kwargs)):
        report = parity.audit(wrong.model, *wrong.args, like=like, **wrong.kwargs)
        assert [row.path for row in report.wrong] == ["two.attention"], report
        assert report.weighed


@pytest.mark.backends("jax")
def test_a_module_of_linen_that_raises_where_numbers_are_known_is_as_it_was():
    import jax
    from audited.of_linen import ByHand, drawn, state
    from flax import linen

    class Raises(linen.Module):
        @linen.compact
        def __call__(self, X):
            Y = ByHand(name="hand")(X)
            if not isinstance(X, jax.core.Tracer) and not self.is_initializing():
                raise OSError("on purpose")
            return Y

    X, model, key = audited.inputs(), Raises(), jax.random.key(1)
    variables, before = drawn(model, X, dropout=key), state(model)
    with pytest.raises(OSError, match="on purpose"):
        parity.audit(model, variables, X, layers={"hand": audited.TAUGHT}, rngs={"dropout": key})
    assert state(model) == before


@pytest.mark.backends("jax")
@pytest.mark.long("jax")  # which compiles it for seconds
def test_numbers_inside_a_transformation_are_not_known():
    from audited.of_linen import Block, drawn
    from flax import linen
    from jax import numpy as jnp

    class Mapped(linen.Module):
        @linen.compact
        def __call__(self, X):
            X, _ = Block(name="one")(X)
            split = {"params": True, "dropout": True}
            kind = linen.vmap(Block, variable_axes={"params": 0}, split_rngs=split, in_axes=None, axis_size=2)
            return kind(name="both")(X)[0].mean(0)

    import jax

    X, key = jnp.asarray(audited.inputs()), jax.random.key(1)
    variables = drawn(Mapped(), X, dropout=key)
    report = parity.audit(Mapped(), variables, X, rngs={"dropout": key})
    assert verdicts(report) == {
        "one.attention": "same",
        "both.0.attention": "not known",
        "both.1.attention": "not known",
    }
    assert "transformation of JAX" in report.layers[0].note
    assert not report


@pytest.mark.backends("jax")
def test_stacks_of_nnx_are_not_known_and_single_layers_are():
    from audited.of_nnx import Block, drawn
    from flax import nnx

    class Stack(nnx.Module):
        def __init__(self, rngs):
            def make(rngs):
                return Block(nnx.MultiHeadAttention, rngs)

            self.one, self.many = make(rngs), nnx.split_rngs(splits=3)(nnx.vmap(make))(rngs)

        def __call__(self, X):
            scanned = nnx.scan(lambda block, X: block(X), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
            return scanned(self.many, self.one(X))

    report = parity.audit(drawn(Stack(nnx.Rngs(0))), audited.inputs())
    assert verdicts(report) == {"one.attention": "same", "many.attention": "not known"}
    assert "stack" in report.unknown[0].note


@pytest.mark.backends("jax")
@pytest.mark.long("jax")  # which compiles it for seconds
def test_training_steps_of_nnx_are_no_reason_to_call_a_layer_right():
    from flax import nnx

    one = audited.make("nnx.own")
    with parity.watch(one.model) as report:
        nnx.value_and_grad(lambda model: (model(one.args[0]) ** 2).mean())(one.model)
    assert set(verdicts(report).values()) == {"not known"}
    assert "transformation of JAX" in report.layers[0].note
    with parity.watch(one.model) as report:
        one.model(one.args[0])
    assert report


@pytest.mark.backends("mxnet")
def test_blocks_of_gluon_are_watched_in_a_training_step_and_stay_compiled():
    from mxnet import autograd

    one = audited.make("gluon.taught")
    one.model(*one.args)
    compiled = [block._cached_op for block in [one.model, *one.model]]
    with parity.watch(one.model, layers=one.layers) as report, autograd.record():
        one.model(*one.args).sum().backward()
    assert report
    assert [block._cached_op for block in [one.model, *one.model]] == compiled
    assert compiled[0] is not None


@pytest.mark.backends("mxnet")
def test_blocks_of_gluon_that_know_no_sizes_yet_are_called_once():
    from audited.of_gluon import ByHand
    from mxnet import np
    from mxnet.gluon import nn

    model = nn.HybridSequential()
    model.add(nn.Dense(D, flatten=False), ByHand(""))
    model.initialize()
    assert verdicts(parity.audit(model, np.array(audited.inputs()), layers={"1": audited.TAUGHT})) == {"1": "same"}
