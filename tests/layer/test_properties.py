"""Properties of any call of a layer: hypothesis draws the calls, and shrinks one that fails to its simplest.

`pytest tests/layer/test_properties.py --hypothesis-profile=long` tries many more, at random; see conftest.py.
Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens, d and dv widths of a query or key head and of a
value head.
"""

import dataclasses
import functools
import importlib
import itertools
import math

import adapters
import formula
import hypothesis
import numpy as np
import pytest
from calls import agree, same
from hypothesis import assume, given
from hypothesis import strategies as st

import mha
from mha import parity
from mha.core import dispatch
from mha.core.options.config import Config, numpy_dtype, shapes

pytestmark = pytest.mark.long(*adapters.COMPILED)  # which compile what is drawn

# B, Q and K, all primes, so that a swapped axis fails.
SHAPES = [(2, 3, 5), (3, 5, 2), (2, 1, 11)]
H, D = parity.WIDTHS["num_heads"], parity.WIDTHS["num_hiddens"]
# Every pair of pooling, bias and dropout, which must do nothing here, where no layer trains. Widths differ, so that a
# swapped axis fails; the first layer's do not, so that a swapped argument fails in another way.
LAYERS = [
    {"pooling": "dot", "bias": False, "dropout": 0.0, "query_size": D, "key_size": D, "value_size": D},
    {"pooling": "dot", "bias": True, "dropout": 0.5},
    {"pooling": "additive", "bias": True, "dropout": 0.0},
    {"pooling": "additive", "bias": False, "dropout": 0.5},
]
LENGTHS = [None, "B", "BQ"]
MASKS = [None, "QK", "1K", "BQK", "B1K", "BHQK", "1H1K", "BHQ1"]
CAUSAL = [False, True]
DTYPES = ["float64", "float32", "float16", "bfloat16"]
KINDS = list(itertools.product(SHAPES, LAYERS, LENGTHS, MASKS, CAUSAL, DTYPES))
# The short profile has every 147th, in which 164 of all 229 pairs of values meet. TensorFlow and JAX compile each kind
# of call: they have eight, in which each value is still met.
SHORT = hypothesis.settings.get_current_profile_name() == "short"
FEW, FEWEST = KINDS[::147], KINDS[155::271]
# JAX's programs are forgotten now and then: each holds about 100 memory maps, and a process that has used up the 65,530
# that Linux gives it crashes.
CALLS = itertools.count(1)
SCALES = [1.0, 1e-2, 30.0]
EVERY_SCALE = [*SCALES, 1e4]
FILLINGS = st.tuples(*[st.sampled_from([np.nan, np.inf, -np.inf, 1e30])] * 3)


@dataclasses.dataclass(frozen=True)
class Call:
    """A layer with random weights and one call of it with random inputs; whatever is random comes from the seed."""

    options: dict
    dtype: str
    shape: tuple[int, int, int]
    seed: int
    scale: float
    lengths: np.ndarray | None
    mask: np.ndarray | None
    causal: bool

    def layer(self, backend):
        """The layer, made once for its options; the next call of `layer` sets its weights anew."""
        assume(self.dtype in dispatch.load(backend).DTYPES)
        if backend == "jax" and next(CALLS) % 200 == 0:
            importlib.import_module("jax").clear_caches()
        attention = layer_of(backend, self.dtype, **self.options)
        attention.weights = self.weights()
        return attention

    def weights(self):
        """The layer's weights by canonical name."""
        rng, sizes = np.random.default_rng(self.seed), shapes(Config(**(parity.WIDTHS | self.options)))
        return {name: self.draw(rng, shape, shape[0] ** -0.5) for name, shape in sizes.items()}

    def inputs(self):
        """Queries (B, Q, query_size), keys (B, K, key_size) and values (B, K, value_size)."""
        rng, (B, Q, K) = np.random.default_rng(self.seed + 1), self.shape
        named, widths = {"query_size": Q, "key_size": K, "value_size": K}, parity.WIDTHS | self.options
        return [self.draw(rng, (B, rows, widths[name]), self.scale) for name, rows in named.items()]

    def cotangent(self):
        """A random gradient by the output, (B, Q, D)."""
        return self.draw(np.random.default_rng(self.seed + 2), (*self.shape[:2], D), 1.0)

    def draw(self, rng, shape, scale):
        return rng.normal(0, scale, shape).astype(numpy_dtype(self.dtype))

    def hiding(self):
        """The arguments of a call that hide keys."""
        return {"valid_lens": self.lengths, "mask": self.mask, "causal": self.causal}

    def visible(self):
        """Which query sees which key, (B, H, Q, K)."""
        B, Q, K = self.shape
        lengths = np.full(B, K) if self.lengths is None else self.lengths
        seen = np.arange(K) < np.broadcast_to(lengths.reshape(B, -1), (B, Q))[:, None, :, None]  # (B, 1, Q, K)
        if self.mask is not None:
            seen = seen & (self.mask[:, None] if self.mask.ndim == 3 else self.mask)
        if self.causal:
            seen = seen & np.tri(Q, K, dtype=bool)
        return np.broadcast_to(seen, (B, H, Q, K))


@st.composite
def calls(draw, backend, scales=SCALES, exact=False):
    """Calls of a layer on a backend, in every dtype where what is tested holds exactly.

    Elsewhere parity's rule for float64 is the measure. It holds up to scale 30: the scores of 1e4 are so large that
    their own rounding moves the weights by more.
    """
    kinds = KINDS if not SHORT else FEWEST if backend in adapters.COMPILED else FEW
    shape, options, lengths, axes, causal, dtype = draw(st.sampled_from(kinds))
    sizes, mask = dict(zip("BQK", shape, strict=True)) | {"H": H, "1": 1}, None
    if lengths is not None:
        lengths = tuple(sizes[axis] for axis in lengths)
        length, count = st.integers(0, sizes["K"] + 2), math.prod(lengths)
        lengths = np.reshape(draw(st.lists(length, min_size=count, max_size=count)), lengths)
    if axes is not None:
        count = math.prod(mask_shape := tuple(sizes[axis] for axis in axes))
        bits = draw(st.binary(min_size=-(-count // 8), max_size=-(-count // 8)))  # 1 = hidden
        mask = np.unpackbits(np.frombuffer(bits, "uint8"))[:count].reshape(mask_shape) == 0
    seed, scale = draw(st.integers(0, 2**32)), draw(st.sampled_from(scales))
    return Call(options, dtype if exact else "float64", shape, seed, scale, lengths, mask, causal)


@functools.cache
def layer_of(backend, dtype, **options):
    return mha.MultiHeadAttention(**(parity.WIDTHS | options), dtype=dtype, backend=backend)


def attend(attention, inputs, **hiding):
    output, weights = attention(*inputs, **hiding, return_weights=True)
    return {"output": output, "weights": weights}


@given(FILLINGS, st.data())
def test_what_nobody_sees_never_matters(backend, fillings, data):
    call = data.draw(calls(backend, scales=EVERY_SCALE, exact=True))
    attention, inputs, hiding = call.layer(backend), call.inputs(), call.hiding()
    sees, seen = call.visible().any((1, 3)), call.visible().any((1, 2))  # (B, Q), (B, K)
    assume(not sees.all() or not seen.all())
    cotangent = call.cotangent()
    expected = attend(attention, inputs, **hiding) | attention.gradients(*inputs, **hiding, cotangent=cotangent)
    with np.errstate(over="ignore"):  # 1e30 is infinite in float16
        for X, used, filling in zip(inputs, (sees, seen, seen), fillings, strict=True):
            X[~used] = np.array(filling).astype(X.dtype)
    assert same(attend(attention, inputs, **hiding), {name: expected.pop(name) for name in ("output", "weights")})
    assert same(attention.gradients(*inputs, **hiding, cotangent=cotangent), expected)


@given(st.data())
def test_a_query_depends_on_what_it_sees_alone(backend, data):
    call = data.draw(calls(backend, scales=EVERY_SCALE, exact=True))
    attention, inputs, hiding, (B, Q, K) = call.layer(backend), call.inputs(), call.hiding(), call.shape
    b, j = data.draw(st.integers(0, B - 1)), data.draw(st.integers(0, K - 1))
    expected = attend(attention, inputs, **hiding)
    for X in inputs[1:]:
        X[b, j] = call.draw(np.random.default_rng(call.seed + 3), X.shape[2], call.scale)
    found = attend(attention, inputs, **hiding)
    apart = np.ones((B, H, Q), bool)
    apart[b] = ~call.visible()[b, :, :, j]
    assert same({"weights": found["weights"][apart]}, {"weights": expected["weights"][apart]})
    apart = apart.all(1)
    assert same({"output": found["output"][apart]}, {"output": expected["output"][apart]})


@given(st.data())
def test_gradients_reach_exactly_what_a_query_sees(backend, data):
    call = data.draw(calls(backend, scales=[1.0, 1e-2]))
    attention, inputs, (B, Q, _) = call.layer(backend), call.inputs(), call.shape
    b, i = data.draw(st.integers(0, B - 1)), data.draw(st.integers(0, Q - 1))
    cotangent = np.zeros((B, Q, D))
    cotangent[b, i] = call.cotangent()[b, i]
    gradients = attention.gradients(*inputs, **call.hiding(), cotangent=cotangent)
    sees = call.visible()[b, :, i]  # (H, K)
    # A key that a head sees alone weighs 1, whatever the key: its gradient is 0 but for rounding.
    compared = sees & (sees.sum(-1, keepdims=True) > 1)  # (H, K)
    for name, rows, must, may in (
        ("queries", i, compared.any(), sees.any()),
        ("keys", slice(None), compared.any(0), sees.any(0)),
        ("values", slice(None), sees.any(0), sees.any(0)),
    ):
        reached = gradients[name].any(-1)  # (B, Q or K)
        assert (must <= reached[b, rows]).all(), name
        assert (reached[b, rows] <= may).all(), name
        reached[b, rows] = False
        assert not reached.any(), name


# Scores of 1e4 * 1e4 are below any fill for hidden ones but the lowest number.
@given(st.data())
def test_weights_are_shares_of_what_is_seen(backend, data):
    call = data.draw(calls(backend, scales=[1.0, 1e4], exact=True))
    shares = attend(call.layer(backend), call.inputs(), **call.hiding())["weights"].astype("float64")
    visible = call.visible()
    assert (shares >= 0).all()
    assert (shares[~visible] == 0).all()
    whole = visible.any(-1).astype("float64")  # (B, H, Q)
    assert parity.error(shares.sum(-1), whole) <= parity.bound(call.dtype, whole, whole)


@given(st.data())
def test_the_formula(backend, data):
    call = data.draw(calls(backend))
    attention, inputs = call.layer(backend), call.inputs()
    expected = formula.both(attention.config, call.weights(), *inputs, **call.hiding())
    assert agree(attend(attention, inputs, **call.hiding()), dict(zip(("output", "weights"), expected, strict=True)))


# A central difference of step h along a direction of length 1 errs by h^2 f''' / 6 and by rounding of about u f / h;
# h = cbrt(u) makes both about u^(2/3) = 2e-11: 1e-8 leaves room for f''' and is far below any mistake.
STEP, TOLERANCE = 2.0**-17, 1e-8


@given(st.data())
def test_gradients_are_slopes(backend, data):
    call = data.draw(calls(backend, scales=[1.0]))
    attention, hiding, cotangent = call.layer(backend), call.hiding(), call.cotangent()
    inputs = dict(zip(("queries", "keys", "values"), call.inputs(), strict=True))
    gradients = attention.gradients(*inputs.values(), **hiding, cotangent=cotangent)
    given, rng = inputs | call.weights(), np.random.default_rng(call.seed + 3)
    direction = {name: rng.normal(size=X.shape) for name, X in given.items()}

    def loss(step):
        moved = {name: X + step / norm(direction) * direction[name] for name, X in given.items()}
        at = [moved.pop(name) for name in inputs]
        attention.weights = moved
        return (attend(attention, at, **hiding)["output"] * cotangent).sum()

    slope = sum((gradients[name] * X).sum() for name, X in direction.items()) / norm(direction)
    assert abs((loss(STEP) - loss(-STEP)) / (2 * STEP) - slope) <= TOLERANCE * norm(gradients)


def norm(arrays):
    return math.sqrt(sum((X**2).sum() for X in arrays.values()))
