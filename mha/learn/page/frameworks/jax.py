"""Measure how JAX with Flax differs: its own attention is `flax.linen.MultiHeadDotProductAttention`."""

import jax
import numpy as np
from flax import linen
from flax.traverse_util import flatten_dict
from jax import numpy as jnp

from mha.learn.page import measures


def layer():
    return [("", f"flax.linen.{linen.MultiHeadDotProductAttention.__name__}")]


def kernel():
    made = linen.Dense(5).init(jax.random.key(0), jnp.ones((1, 3)))
    return [("", measures.orientation(made["params"]["kernel"].shape, 3))]


def names():
    made = _variables(_layer())["params"]
    return measures.shapes({name: X.shape for name, X in flatten_dict(made, sep=".").items()})


def initial():
    made = linen.MultiHeadDotProductAttention(4).init(jax.random.key(0), jnp.ones((1, 3, 256)))["params"]["query"]
    return [("", measures.spread(np.array(made["kernel"]))), ("of_bias", measures.spread(np.array(made["bias"])))]


def lazy():
    made = _layer()
    ((before, _),) = measures.outcome(lambda: made.variables and None)  # which a module has once it is bound to them
    after = len(flatten_dict(_variables(made)))
    return [("lazy" if before == "error" else "eager", f"len(layer.init(key, X)): {after}")]


def training():
    made, X = _layer(dropout_rate=0.5), jnp.ones((1, 64, 8))
    variables, keys = _variables(_layer()), iter(jax.random.split(jax.random.key(0), 8))

    def call(**said):
        return np.array(made.apply(variables, X, rngs={"dropout": next(keys)}, **said))

    unsaid = measures.outcome(call)
    said = [(measures.drops(lambda on=on: call(deterministic=on)), f"deterministic={on}") for on in (True, False)]
    return [*unsaid, *said]


def weights():
    made = _weights(jnp.ones((1, 3, 8)), jnp.ones((1, 4, 8)))
    return [("", f'sow_weights=True, mutable="intermediates" {made.shape}')]


def mask():
    one = jnp.array([[[[True, False, False]]]])
    made = _weights(jnp.ones((1, 1, 8)), jnp.ones((1, 3, 8)), mask=one)
    return [(measures.polarity(made[0, 0, 0], 0), "mask")]


def no_keys():
    X, hidden = jnp.ones((1, 3, 8)), jnp.zeros((1, 1, 3, 3), bool)
    return [(measures.alone(_weights(X, X, mask=hidden)[0, 0, 0]), "")]


def dtype():
    made = _variables(_layer())["params"]["query"]["kernel"]
    return [("of_layer", made.dtype.name), ("of_array", jnp.array([1.0]).dtype.name)]


def random():
    key = jax.random.key(0)
    return [
        (measures.repeats(lambda: None, lambda: np.array(jax.random.normal(key, (3,)))), "jax.random.normal(key, ...)")
    ]


def heads():
    made = linen.MultiHeadDotProductAttention(3)
    return measures.outcome(lambda: made.init(jax.random.key(0), jnp.ones((1, 2, 10))) and None)


def compiled():
    traced, made = [], _layer()
    variables = _variables(made)

    @jax.jit
    def call(X):
        traced.append(X.shape)
        return made.apply(variables, X)

    return measures.programs("jax.jit", traced, lambda T: call(jnp.ones((2, T, 8))))


def _layer(**options):
    return linen.MultiHeadDotProductAttention(2, **options)


def _variables(layer):
    return layer.init(jax.random.key(0), jnp.ones((1, 3, 8)))


def _weights(X, Y, **hiding):
    made = _layer()
    _, found = made.apply(_variables(made), X, Y, sow_weights=True, mutable="intermediates", **hiding)
    return np.array(found["intermediates"]["attention_weights"][0])
