"""Measure how JAX with Flax differs: its own attention is `flax.linen.MultiHeadDotProductAttention`.

Each function returns pairs of a word and a detail, as `mha.learn.page.measures` has them.
"""

import jax
import numpy as np
from flax import linen
from flax.traverse_util import flatten_dict
from jax import numpy as jnp

from mha.learn.page import measures


def layer():
    """The framework's own attention layer."""
    return [("", f"flax.linen.{linen.MultiHeadDotProductAttention.__name__}")]


def kernel():
    """Which way round a dense layer stores its kernel."""
    made = linen.Dense(5).init(jax.random.key(0), jnp.ones((1, 3)))
    return [("", measures.orientation(made["params"]["kernel"].shape, 3))]


def names():
    """The parameters of a fresh layer and their shapes, of 8 hidden units and 2 heads."""
    made = _variables(_layer())["params"]
    return measures.shapes({name: X.shape for name, X in flatten_dict(made, sep=".").items()})


def initial():
    """Mean and standard deviation of a fresh layer's query kernel, of 256 hidden units and 4 heads; its bias."""
    made = linen.MultiHeadDotProductAttention(4).init(jax.random.key(0), jnp.ones((1, 3, 256)))["params"]["query"]
    return [("", measures.spread(np.array(made["kernel"]))), ("of_bias", measures.spread(np.array(made["bias"])))]


def lazy():
    """Whether a fresh layer has its weights before it is called."""
    made = _layer()
    ((before, _),) = measures.outcome(lambda: made.variables and None)  # which a module has once it is bound to them
    after = len(flatten_dict(_variables(made)))
    return [("lazy" if before == "error" else "eager", f"len(layer.init(key, X)): {after}")]


def training():
    """Whether a fresh layer drops weights when nobody says whether it is training, and what says it."""
    made, X = _layer(dropout_rate=0.5), jnp.ones((1, 64, 8))
    variables, keys = _variables(_layer()), iter(jax.random.split(jax.random.key(0), 8))

    def call(**said):
        return np.array(made.apply(variables, X, rngs={"dropout": next(keys)}, **said))

    unsaid = measures.outcome(call)
    said = [(measures.drops(lambda on=on: call(deterministic=on)), f"deterministic={on}") for on in (True, False)]
    return [*unsaid, *said]


def weights():
    """Where the attention weights are found, and their shape for 1 sample, 2 heads, 3 queries and 4 keys."""
    made = _weights(jnp.ones((1, 3, 8)), jnp.ones((1, 4, 8)))
    return [("", f'sow_weights=True, mutable="intermediates" {made.shape}')]


def mask():
    """The meaning of True in a boolean mask of the framework's own attention."""
    one = jnp.array([[[[True, False, False]]]])
    made = _weights(jnp.ones((1, 1, 8)), jnp.ones((1, 3, 8)), mask=one)
    return [(measures.polarity(made[0, 0, 0], 0), "mask")]


def no_keys():
    """The weights of a query whose keys are all hidden."""
    X, hidden = jnp.ones((1, 3, 8)), jnp.zeros((1, 1, 3, 3), bool)
    return [(measures.alone(_weights(X, X, mask=hidden)[0, 0, 0]), "")]


def dtype():
    """The dtype of a fresh layer, and of an array that is made of Python's floats."""
    made = _variables(_layer())["params"]["query"]["kernel"]
    return [("of_layer", made.dtype.name), ("of_array", jnp.array([1.0]).dtype.name)]


def random():
    """The way to make random numbers repeat, and whether a second draw is another."""
    key = jax.random.key(0)
    return [
        (measures.repeats(lambda: None, lambda: np.array(jax.random.normal(key, (3,)))), "jax.random.normal(key, ...)")
    ]


def heads():
    """The result of 3 heads of 10 hidden units."""
    made = linen.MultiHeadDotProductAttention(3)
    return measures.outcome(lambda: made.init(jax.random.key(0), jnp.ones((1, 2, 10))) and None)


def compiled():
    """How many programs a compiled layer takes for sequences of 3 lengths."""
    traced, made = [], _layer()
    variables = _variables(made)

    @jax.jit
    def call(X):
        traced.append(X.shape)
        return made.apply(variables, X)

    for T in (3, 4, 5):
        call(jnp.ones((2, T, 8)))
    return [(measures.programs(len(traced), 3), f"jax.jit: {len(traced)}")]


def _layer(**options):
    return linen.MultiHeadDotProductAttention(2, **options)


def _variables(layer):
    return layer.init(jax.random.key(0), jnp.ones((1, 3, 8)))


def _weights(X, Y, **hiding):
    made = _layer()
    _, found = made.apply(_variables(made), X, Y, sow_weights=True, mutable="intermediates", **hiding)
    return np.array(found["intermediates"]["attention_weights"][0])
