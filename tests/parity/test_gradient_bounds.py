"""The bound of the mean of a gradient in half precision: as numbers, for right ports, and for ports with a mistake."""

import dataclasses
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import mha
from mha import parity
from mha.parity.cases import suite
from mha.parity.diagnosis.pipeline import gradient_rounding
from mha.parity.rule import half_precision
from mha.parity.rule.layouts import GRADIENT
from mha.parity.rule.problem import Expected
from mha.parity.rule.rules import mean_bound

sys.path.append(str(Path(__file__).parents[1] / "helpers" / "right_ports"))
from draws import Trial

HALVES = ["float16", "bfloat16"]


@pytest.mark.margin(1, 1)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("size", "factor"), [(4, 7.5), (400, 3.0), (160_000, 2.525)])  # 2.5 * (1 + 4 / sqrt(size))
def test_the_mean_may_be_so_many_times_that_of_right_code(dtype, size, factor):
    oracle = np.zeros(size)
    oracle[:2] = 1, -1
    bound = mean_bound(dtype, oracle, [oracle, oracle + 0.25])
    right = Expected(oracle, 1e9, means=((oracle, bound),))
    assert right.ratio(oracle - 0.95 * factor / 4) <= 1 < right.ratio(oracle - 1.05 * factor / 4)


@pytest.mark.margin(1, 1)
@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_without_an_error_a_rounding_of_the_numbers_or_of_their_peers_is_allowed(dtype, unit):
    oracle = np.full(400, 2.0)
    for floor, error in ((0.0, 0.3 * 2), (5.0, 5.0)):
        right = Expected(oracle, 1e9, means=((oracle, mean_bound(dtype, oracle, [oracle], floor)),))
        assert right.ratio(oracle + 0.95 * 3 * unit * error) <= 1 < right.ratio(oracle + 1.05 * 3 * unit * error)


def test_a_gradient_that_is_near_one_of_several_right_ones_is_right():
    right = Expected(np.zeros(9), 1e9, means=((np.zeros(9), 1.0), (np.full(9, 6.0), 2.0)))
    assert [right.ratio(np.full(9, each)) for each in (0.5, 3, 5, 9)] == [0.5, 1.5, 0.5, 1.5]


def trial(dtype, scale=None):
    """A call with a layer; scale: the mistaken one of a port."""
    layer = mha.MultiHeadAttention(64, 4, bias=True, scale=scale, dtype=dtype, seed=3, backend="numpy")
    X = np.random.default_rng(5).normal(size=(2, 48, 64))
    kind = layer.weights["W_q.kernel"].dtype
    layer.weights = {name: (2 * W.astype("float64")).astype(kind) for name, W in layer.weights.items()}
    return Trial(layer, (X.astype(kind),) * 3, {"causal": True})


def ratio(asked, gradients):
    """The largest ratio of some gradients."""
    return max(
        asked.expected(GRADIENT + name).ratio(mha.to_numpy(X).astype("float64")) for name, X in gradients.items()
    )


@pytest.fixture(scope="module", params=HALVES)
def call(request):
    """A call, the gradient by its output, and its problem."""
    made = trial(request.param)
    X = np.random.default_rng(7).normal(size=(2, 48, 64)).astype(made.inputs[0].dtype)
    return made, X, made.problem(X)


def of_pytorch(name, made, cotangent):
    """The gradients of a port of PyTorch."""
    ports = importlib.import_module("torch_ports")
    return ports.gradients(ports.PORTS[name][0], made, cotangent)


@pytest.mark.margin(1, 2)  # it asks for one itself
@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["eager", "half_softmax", "upcast", "sdpa", "sdpa_math", "mha", "mha_fused"])
def test_right_ports_of_pytorch_are_right_with_a_margin(call, name):
    made, cotangent, asked = call
    assert ratio(asked, of_pytorch(name, made, cotangent)) < 0.7


@pytest.mark.margin(1, 2)
@pytest.mark.backends("torch", "tensorflow", "jax", "mlx")
def test_right_backends_are_right_with_a_margin(call, backend):
    made, cotangent, asked = call
    found = made.layer.to(backend).gradients(*made.inputs, cotangent=cotangent, **made.call)
    assert ratio(asked, found) < 0.7


@pytest.mark.backends("torch")
def test_a_scale_that_is_too_large_is_noticed(call):
    made, cotangent, asked = call
    other = trial(made.config.dtype, made.scale * (1.1 if made.config.dtype == "bfloat16" else 1.02))
    assert ratio(asked, of_pytorch("eager", dataclasses.replace(other, inputs=made.inputs), cotangent)) > 2


@pytest.mark.backends("torch")
def test_a_softmax_whose_gradient_leaves_out_the_sum_is_noticed(call, monkeypatch):
    torch, (made, cotangent, asked) = importlib.import_module("torch"), call
    softmax = torch.softmax

    class WithoutSum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scores):
            weights = softmax(scores.float(), -1)
            ctx.save_for_backward(weights)
            return weights

        @staticmethod
        def backward(ctx, by_weights):
            return (ctx.saved_tensors[0] * by_weights).to(by_weights.dtype)

    monkeypatch.setattr(torch, "softmax", lambda scores, *_, **__: WithoutSum.apply(scores))
    assert ratio(asked, of_pytorch("eager", made, cotangent)) > 2


@pytest.mark.parametrize("dtype", HALVES)
def test_the_suite_takes_the_mean_of_gradients(dtype, monkeypatch):
    case = next(case for case in suite.ALL_CASES if dtype in case.dtypes)
    monkeypatch.setattr(gradient_rounding, "bounds_of", lambda asked, name, X, *_: (1e9, ((X, 0.0),)))
    results = {result.check: result for result in suite.check_case("numpy", case, dtype)}
    assert results["gradients"].where.startswith("the mean of ")
    assert not results["gradients"].passed


@pytest.mark.parametrize("dtype", HALVES)
def test_the_suite_takes_the_styles_of_outputs(dtype, monkeypatch):
    case, judge = next(case for case in suite.ALL_CASES if dtype in case.dtypes), half_precision.HalfPrecision.judge
    monkeypatch.setattr(half_precision.HalfPrecision, "judge", lambda *of: judge(*of)._replace(ratio=3.0))
    results = {result.check: result for result in suite.check_case("numpy", case, dtype)}
    checks = {"output and weights": "output", "steps": "output", "gradients": "output of vjp"}
    for check, name in checks.items():
        assert (results[check].where, results[check].ratio) == (f"the rounding of {name}", 3)


@pytest.mark.parametrize("over", ["samples", "tokens"])
def test_factors_that_differ_by_less_than_the_largest_rounding_are_told_apart(over):
    B, T = 64, 65  # the factors differ by 1.5 %
    layer = mha.MultiHeadAttention(12, 2, dtype="bfloat16", seed=0, backend="numpy")
    X = np.random.default_rng(1).normal(size=(B, T, 12)).astype(layer.weights["W_o.kernel"].dtype)
    right = layer.gradients(X, X, X)["W_o.kernel"]
    theirs = (right.astype("float64") / {"samples": B, "tokens": T}[over]).astype(X.dtype)
    found = parity.diagnose(layer, {"gradient.W_o.kernel": theirs}, X, X, X)
    assert found.mistakes == ("gradients of weights are means",)
    assert f"kernels over {over}" in found.explanations[0].how[0]
    assert {"samples": "tokens", "tokens": "samples"}[over] not in found.explanations[0].how[0]
