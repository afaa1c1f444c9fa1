"""A call that was described wrongly is not blamed on a port: `diagnosis.call` has its arguments as they should be."""

import numpy as np
import pytest
from ports import Port

import mha
from mha import parity

B, Q, K, H, G, D = 3, 5, 12, 6, 2, 24
LENGTHS = [7, 12, 9]
random = np.random.default_rng(1)
MASK = random.random((B, 1, Q, K)) < 0.6
MASK[..., 3] = True
INVERTIBLE = random.random((B, 1, Q, K)) < 0.5
INVERTIBLE[..., 3], INVERTIBLE[..., 5] = True, False
INPUTS = [random.normal(size=(B, T, D)).astype("float32") for T in (Q, K, K)]


@pytest.fixture(scope="module")
def layer():
    return mha.MultiHeadAttention(D, H, num_key_value_heads=G, bias=True, seed=0, backend="numpy")


class Blind(Port):
    """A port whose queries have NaN where they see no key."""

    def softmax(self, scores, seen):
        shares = np.exp(scores) * seen
        with np.errstate(invalid="ignore"):
            return shares / shares.sum(-1, keepdims=True)


def port(layer, inputs, seen):
    """What a port in float64 gives of pairs that see each other."""
    output, weights = Blind(layer)(*(X.astype(float) for X in inputs), mask=seen)
    return {"weights": weights.astype("float32"), "output": output.astype("float32")}


def order(offset):
    """Which keys come no later than the query at this offset."""
    return np.arange(K) <= np.arange(Q)[:, None] + np.array(offset).reshape(-1, 1, 1, 1)


def padding(lengths):
    """Which keys are below the lengths."""
    return np.arange(K) < np.array(lengths)[:, None, None, None]


def diagnosed(layer, seen, inputs=INPUTS, **call):
    """The diagnosis of a port by its output, which is that by all steps, too."""
    steps = port(layer, inputs, seen)
    by_steps, by_output = (parity.diagnose(layer, theirs, *inputs, **call) for theirs in (steps, steps["output"]))
    assert by_steps.call.keys() == by_output.call.keys()
    assert by_steps.mistakes == by_output.mistakes
    for name, X in by_output.call.items():
        assert np.array_equal(by_steps.call[name], X)
    if by_output.call:  # what it says is so
        changed = {"valid_lens": call.pop("valid_lens", None)} | call | by_output.call
        assert parity.compare(layer, steps, *inputs, **changed)
    return by_output


# What was left out of the description


@pytest.mark.parametrize("offset", [7, 3])
def test_a_forgotten_offset(layer, offset):
    diagnosis = diagnosed(layer, order(offset), causal=True)
    assert (diagnosis.call, diagnosis.mistakes, diagnosis.known) == ({"offset": offset}, (), True)
    lower_right = "; or, in the port: causal order is aligned to the lower right" if offset == K - Q else ""
    assert " ".join(str(diagnosis).split()) == f"why: the same, if it was called with offset={offset}{lower_right}"


def test_a_forgotten_offset_of_each_sample(layer):
    diagnosis = diagnosed(layer, order([2, 6, 1]), causal=True)
    assert diagnosis.call["offset"].tolist() == [2, 6, 1]
    assert "if it was called with offset=[2, 6, 1]" in str(diagnosis)


def test_a_forgotten_causal_order(layer):
    diagnosis = diagnosed(layer, order(0))
    assert (diagnosis.call, diagnosis.mistakes) == ({"causal": True}, ())
    assert diagnosed(layer, order(7)).call == {"causal": True, "offset": 7}
    assert diagnosed(layer, order(0) & padding(LENGTHS), valid_lens=LENGTHS).call == {"causal": True}


def test_forgotten_lengths(layer):
    diagnosis = diagnosed(layer, padding(LENGTHS))
    assert diagnosis.call["valid_lens"].tolist() == LENGTHS
    assert diagnosis.mistakes == ()
    assert str(diagnosis) == "why: the same, if it was called with valid_lens=[7, 12, 9]"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_offset_of_a_rotation(dtype):
    turning = mha.MultiHeadAttention(D, H, rotary=mha.Rotary(4), dtype=dtype, seed=0, backend="numpy")
    inputs = [X.astype(dtype) for X in INPUTS]
    output = turning(*inputs, offset=4)
    for theirs in (output, turning.trace(*inputs, offset=4)):
        diagnosis = parity.diagnose(turning, theirs, *inputs)
        assert (diagnosis.call, diagnosis.mistakes) == ({"offset": 4}, ())


# What the mask means


def test_an_inverted_mask(layer):
    for mask in (INVERTIBLE, INVERTIBLE[0, 0], padding(LENGTHS)):
        diagnosis = diagnosed(layer, ~mask, mask=mask)
        assert diagnosis.call.keys() == {"mask"}
        assert np.array_equal(diagnosis.call["mask"], ~mask)
        if not (~mask).any(-1).all():  # the mask of padding hides no key of the longest sample
            continue
        assert diagnosis.mistakes == ()
        words = "why: the same, if it was called with mask=~mask; or, in the port: the mask is inverted"
        assert " ".join(str(diagnosis).split()) == words


def test_a_transposed_mask(layer):
    X = INPUTS[1]
    mask = np.random.default_rng(2).random((B, K, K)) < 0.5
    mask |= np.eye(K, dtype=bool)
    diagnosis = diagnosed(layer, mask.swapaxes(1, 2)[:, None], [X, X, X], mask=mask)
    assert np.array_equal(diagnosis.call["mask"], mask.swapaxes(1, 2))
    assert diagnosis.mistakes == ()
    assert "mask=mask.swapaxes(-1, -2)" in str(diagnosis)
    assert "called with mask=mask.T" in str(diagnosed(layer, mask[0].T, [X, X, X], mask=mask[0]))


PAIRS_OF_PADDING = np.broadcast_to(padding(LENGTHS), (B, H, K, K)).copy()


def test_a_mask_of_padding_that_is_ignored_is_not_turned(layer):
    """Queries in padding would see no key of a turned mask, and what they have tells that they see all."""
    X, everything = INPUTS[1], np.ones((1, 1, K, K), bool)
    for inputs in ([X, X, X], [2 * X, X, X]):
        diagnosis = diagnosed(layer, everything, inputs, mask=PAIRS_OF_PADDING)
        assert (diagnosis.mistakes, diagnosis.call) == (("the mask is ignored",), {"mask": None})


def test_one_condition_that_is_ignored_has_one_name(layer):
    X, everything = INPUTS[1], np.ones((1, 1, K, K), bool)
    for call in ({"mask": PAIRS_OF_PADDING}, {"valid_lens": LENGTHS}, {"causal": True}):
        diagnosis = diagnosed(layer, everything, [X, X, X], **call)
        assert [one.also for one in diagnosis.explanations if one.mistakes == diagnosis.mistakes] == [
            ("everything is seen",)
        ]
        assert ("everything is seen",) not in diagnosis.alternatives
        assert str(diagnosis).count("everything is seen") == 1
    both = diagnosed(layer, everything, [X, X, X], valid_lens=LENGTHS, causal=True)
    assert both.mistakes == ("everything is seen",)  # of two conditions, none alone


@pytest.mark.parametrize("left", ["NaN", "mean", "0"])
def test_a_mask_of_padding_that_is_turned(layer, left):
    """Whatever a port has for queries that see no key."""
    X, turned = INPUTS[1], PAIRS_OF_PADDING.swapaxes(2, 3)
    theirs = port(layer, [X, X, X], turned)["output"]
    means = (X.mean(1, keepdims=True) @ layer.weights["W_v.kernel"]).reshape(B, 1, G, D // H)  # (B, 1, G, d)
    mean = np.repeat(means, H // G, 2).reshape(B, 1, D) @ layer.weights["W_o.kernel"]
    rest = {"NaN": np.nan, "mean": mean + layer.weights["W_o.bias"], "0": layer.weights["W_o.bias"]}[left]
    theirs = np.where(np.isnan(theirs), rest, theirs).astype("float32")
    diagnosis = parity.diagnose(layer, theirs, X, X, X, mask=PAIRS_OF_PADDING)
    assert np.array_equal(diagnosis.call["mask"], turned)


@pytest.mark.parametrize("inverted", [False, True])
def test_a_mask_of_keys_with_as_many_samples_as_queries(layer, inverted):
    inputs = [X[:, :T] for X, T in zip(INPUTS, (B, K, K), strict=True)]
    mask = padding(LENGTHS)[:, 0, 0]  # (B, K)
    given = ~mask if inverted else mask
    diagnosis = diagnosed(layer, mask[:, None, None], inputs, mask=given)
    assert np.array_equal(diagnosis.call["mask"], mask[:, None])
    assert diagnosis.mistakes == ()
    assert f"the same, if it was called with mask={'~' * inverted}mask[:, None]" in str(diagnosis)


# What was given, and the port does not use


IGNORED = {
    "the lengths are ignored": {"valid_lens": LENGTHS},
    "the mask is ignored": {"mask": MASK},
    "causal order is ignored": {"causal": True},
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_the_port_ignores_is_its_mistake_and_the_call_is_said(layer, name):
    call = IGNORED[name]
    diagnosis = diagnosed(layer, np.ones((1, 1, Q, K), bool), **call)
    assert diagnosis.mistakes == (name,)
    (argument,) = call
    assert diagnosis.call == {argument: False if argument == "causal" else None}
    assert f"or the same, if it was called with {argument}={diagnosis.call[argument]}" in " ".join(
        str(diagnosis).split()
    )


def test_an_offset_that_is_given_is_the_ports(layer):
    diagnosis = diagnosed(layer, order(0), causal=True, offset=7)
    assert diagnosis.mistakes == ("causal order begins again at every offset",)
    assert diagnosis.call == {"offset": 0}
    diagnosis = diagnosed(layer, order(7), causal=True, offset=3)
    assert diagnosis.mistakes == ("causal order is aligned to the lower right",)
    assert diagnosis.call == {"offset": 7}


def test_a_window_says_by_itself_how_far_queries_look_ahead():
    X = INPUTS[1]
    windowed = [mha.MultiHeadAttention(D, H, window=window, seed=0, backend="numpy") for window in ((4, 2), (4, 0))]
    diagnosis = parity.diagnose(windowed[0], windowed[1](X, X, X), X, X, X)
    assert (diagnosis.call, diagnosis.mistakes) == ({}, ("the window only looks back",))
    one_sided = mha.MultiHeadAttention(D, H, window=(4, None), seed=0, backend="numpy")
    assert parity.diagnose(one_sided, windowed[1](X, X, X), X, X, X).call == {"causal": True}


def test_what_is_called_by_us_is_not_called_wrongly():
    def inverted(queries, keys, values, mask, attention):
        return attention(queries, keys, values, mask=~mask)

    with pytest.raises(AssertionError) as raised:
        mha.testing.assert_parity(inverted, "numpy", cases=["mask"], dtypes=["float64"])
    assert "why: the mask is inverted" in str(raised.value)
    assert "if it was called" not in str(raised.value)


# No call is made up


def test_other_mistakes_are_not_of_the_call(layer):
    wrong = layer.to("numpy")
    wrong.weights = wrong.weights | {"W_q.kernel": np.ascontiguousarray(wrong.weights["W_q.kernel"].T)}
    for call in ({}, {"causal": True}, {"mask": MASK}, {"valid_lens": LENGTHS}):
        diagnosis = parity.diagnose(layer, wrong(*INPUTS, **call), *INPUTS, **call)
        assert (diagnosis.call, diagnosis.mistakes) == ({}, ("W_q.kernel is not transposed",))
    noise = layer(*INPUTS) + random.normal(size=(B, Q, D)).astype("float32")
    diagnosis = parity.diagnose(layer, noise, *INPUTS)
    assert (diagnosis.call, diagnosis.known) == ({}, False)


def test_a_call_in_which_nothing_is_seen_explains_nothing(layer):
    """Rows that see no key do not count, so that all of them would be the same."""
    mask = np.ones((Q, K), bool)
    diagnosis = parity.diagnose(layer, 2 * layer(*INPUTS), *INPUTS, mask=mask)
    assert (diagnosis.call, diagnosis.known) == ({}, False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_half_precision_one_key_more_is_another_call(dtype):
    wide = mha.MultiHeadAttention(128, 4, dtype=dtype, seed=0, backend="numpy")
    X = mha.normal(0, 1, (2, 11, 128), dtype=dtype, backend="numpy")
    diagnosis = parity.diagnose(wide, wide(X, X, X, [6, 9]), X, X, X)
    assert diagnosis.call["valid_lens"].tolist() == [6, 9]


def test_in_half_precision_noise_is_no_call():
    wide = mha.MultiHeadAttention(128, 4, dtype="bfloat16", seed=0, backend="numpy")
    X = mha.normal(0, 1, (2, 11, 128), dtype="bfloat16", backend="numpy")
    weights = wide.trace(X, X, X, [6, 9])["weights"]
    size = np.sqrt(np.square(weights.astype(float)).mean())
    for units, call in ((1, {"valid_lens"}), (8, set())):
        noise = np.random.default_rng(3).normal(0, units * parity.UNIT["bfloat16"] * size, weights.shape)
        theirs = {"weights": (weights.astype(float) + noise * (weights != 0)).astype(weights.dtype)}
        assert parity.compare(wide, theirs, X, X, X, [6, 9])  # by the rule it may be as far
        assert parity.diagnose(wide, theirs, X, X, X).call.keys() == call


def test_nan_shows_no_call(layer):
    values = INPUTS[2].copy()
    values[:, 9:] = np.nan  # in padding
    output = np.full((B, Q, D), np.nan, "float32")
    diagnosis = parity.diagnose(layer, output, *INPUTS[:2], values, [7, 8, 9])
    assert (diagnosis.call, diagnosis.known) == ({}, False)


def test_gradients_that_differ_even_so_are_said(layer):
    theirs = layer.gradients(*INPUTS, causal=True) | {"output": layer(*INPUTS, causal=True)}
    diagnosis = parity.diagnose(layer, theirs, *INPUTS)
    assert str(diagnosis) == "why: the same, if it was called with causal=True"
    diagnosis = parity.diagnose(layer, theirs | {"keys": 2 * theirs["keys"]}, *INPUTS)
    assert diagnosis.call == {"causal": True}
    assert str(diagnosis).endswith("; but these differ even so: gradient.keys")
