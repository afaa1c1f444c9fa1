"""Which arguments of a call `mha.testing.assert_parity` hands over: named ones, `**kwargs`, and masks for others."""

import numpy as np
import pytest
from ports import Port

import mha
from mha.core.call import ROWS

LAYER = mha.MultiHeadAttention(24, 4, bias=True, seed=0, backend="numpy")
PLAIN = ["float32, no lengths"]


def cases_of(implementation, attention=LAYER, **options):
    """The labels of the cases in which an implementation is the same."""
    return list(mha.testing.assert_parity(implementation, "numpy", attention=attention, **options).reports)


def run(attention, X, mask=None):
    return Port(attention)(X, X, X, mask=mask)


def accepts_all(hidden_states, mask=None, position_bias=None, **unused):
    """As most modules of `transformers`, which use few of the arguments that they accept."""
    return run(LAYER, hidden_states, mask)


def lone(hidden_states, **given):
    return run(LAYER, hidden_states, given.get("mask"))


# 1. What is handed over


def test_arguments_that_a_function_accepts_unnamed_are_not_handed_to_it():
    outcome = mha.testing.assert_parity(accepts_all, "numpy", attention=LAYER)
    assert {"float32, lengths per sample", "float32, causal", "float32, lengths, mask, causal"} <= {*outcome.reports}
    assert outcome.left_out["float32, score bias"] == "it takes no score_bias"
    with pytest.raises(AssertionError, match="the lengths are ignored "):
        cases_of(accepts_all, takes=["valid_lens"], cases="lengths per sample")


def test_a_layer_is_given_what_it_names():
    class Layer(Port):
        def forward(self, queries, keys, values, valid_lens=None, **unused):
            assert not unused
            return super().__call__(queries, keys, values, valid_lens)

        __call__ = forward

    outcome = mha.testing.assert_parity(Layer(LAYER), "numpy", attention=LAYER)
    assert "float32, lengths per query" in outcome.reports
    assert outcome.left_out["float32, mask"] == "it takes no mask"


def test_a_function_that_asks_for_attention_is_given_everything():
    found = []

    def port(attention, queries, keys, values, **given):
        found.extend(given)
        return attention(queries, keys, values, **given)

    assert "float32, all options" in cases_of(port)
    assert {*found} == {*ROWS}
    found.clear()
    assert "float32, all options" not in cases_of(port, takes=("mask", "score_bias"))
    assert {*found} == {"mask", "score_bias"}


def test_takes_says_what_kwargs_take():
    assert "float32, lengths, mask, causal" in cases_of(lone, takes="mask")
    assert cases_of(lone, takes=()) == PLAIN
    assert cases_of(lambda X, attention_mask=None: run(LAYER, X), takes=()) == PLAIN


def test_weights_may_be_means_over_the_heads():
    def port(X, mask=None):
        output, weights = LAYER(X, X, X, mask=mask, return_weights=True)
        return output, weights.mean(1)  # (B, Q, K)

    assert "float32, lengths, mask, causal" in cases_of(port)
    with pytest.raises(AssertionError, match=r"mean weights .* DIFFERS"):
        cases_of(lambda X, mask=None: (port(X, mask)[0], port(X)[1]), cases="causal")


# 2. Masks


def test_a_mask_in_place_of_other_arguments_has_four_axes():
    shapes = set()

    def port(X, mask=None):
        shapes.add(mask if mask is None else mask.shape)
        return run(LAYER, X, mask)

    cases_of(port)
    cases_of(port, cases=["mask", "mask of each sample", "mask of one row"])
    assert {len(shape) for shape in shapes - {None}} == {4}
    assert {shape[1] for shape in shapes - {None}} == {1, 4}


def test_a_mask_hides_what_has_no_argument_and_no_more():
    calls = []

    def port(X, valid_lens=None, mask=None):
        calls.append((valid_lens.tolist(), mask.tolist()))
        return Port(LAYER)(X, X, X, valid_lens, mask)

    cases_of(port, cases="lengths per sample", causal=True)
    assert calls == [([3, 2], [[np.tri(3, dtype=bool).tolist()]] * 2)]


def test_a_port_that_ignores_its_mask_is_told_so():
    with pytest.raises(AssertionError, match="the mask is ignored "):
        cases_of(lambda X, mask=None: run(LAYER, X), cases="lengths per sample")


def test_what_a_mask_hides_in_every_case_is_unseen():
    class Unwindowed(Port):
        window = None, None

    layer = mha.MultiHeadAttention(24, 4, window=(7, 0), seed=0, backend="numpy")
    outcome = mha.testing.assert_parity(
        lambda X, mask=None: Unwindowed(layer)(X, X, X, mask=mask), "numpy", attention=layer, causal=True
    )
    assert "the window is ignored" in {one.mistake for one in outcome.unseen}
    assert "causal order is ignored" not in {one.mistake for one in outcome.unseen}


# 3. What is refused


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (lone, {}, r'its \*\*given take: takes=\("mask",\) if they take the mask, takes=\(\) if they take none'),
        (lambda X, attention_mask=None, **rest: X, {}, r"hides keys by `attention_mask`, .* \(B, 1 or H, Q, K\), "
         r"True = may attend: lambda X, mask=None: port\(X, attention_mask=\.\.\.\); or takes=\(\), to compare only"),
        (lambda X, places, attn_mask: X, {}, r"lambda X, places, mask=None: port\(X, places, attn_mask=\.\.\.\)"),
        (lambda q, k, v, attn_mask=None: q, {}, r"lambda q, k, v, mask=None: port\(q, k, v, attn_mask=\.\.\.\)"),
        (lone, {"takes": ["mas"]}, "takes is 'mas', expected one of valid_lens, mask, .*; did you mean 'mask'"),
        (lone, {"takes": 3}, "takes is 3 .*, expected names of valid_lens"),
        (run, {"takes": "causal"}, r"takes has causal, but implementation run\(.*\) has neither a parameter"),
        (LAYER, {"takes": ()}, r"takes is \(\), expected None: mha knows how to call a mha\.layer\.Multi"),
    ],
)  # fmt: skip
def test_what_cannot_be_known_is_refused_with_what_to_write(given, options, message):
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        cases_of(given, **options)
    assert "\n" not in str(raised.value)


def test_a_switch_is_no_mask():
    def port(X, use_causal_mask=False, *, needs_mask=True):
        return run(LAYER, X)

    assert cases_of(port) == PLAIN


@pytest.mark.backends("torch")
def test_arrays_are_made_where_the_weights_of_a_layer_lie():
    import torch

    given = []

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.own = torch.nn.Linear(2, 2, device="meta")  # a device, without numbers

        def forward(self, queries, keys, values, valid_lens=None, mask=None, cotangent=None):
            given.extend(X.device.type for X in (queries, keys, values, valid_lens, mask, cotangent) if X is not None)
            raise NotImplementedError("it has no numbers")

    own = mha.MultiHeadAttention(24, 4, seed=0, backend="torch")
    with pytest.raises(AssertionError, match="it has no numbers"):
        mha.testing.assert_parity(Own(), attention=own, cases=["lengths per sample", "mask"])
    assert given == ["meta"] * 10
    own.layer.to("meta")
    with pytest.raises(AssertionError, match="X is a Tensor whose values are not known yet"):
        mha.testing.assert_parity(own, attention=LAYER, cases="no lengths")
